import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import grace
from grace.base.randomness import generator
from grace.data.decoding import read_pixels
from grace.data.memory import nearest_mean
from grace.learner.export import Preprocessing, check_onnx, export_onnx, latency, load_onnx
from grace.nn.cifar_resnet import CifarResNet
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import LinearHead
from grace.nn.timm_backbone import TimmBackbone
from grace.nn.torchvision_resnet import TorchvisionResNet
from support.quick_exports import operators_once as operators_once

ROOT = Path(__file__).parents[2]
NAMES = ["cat", "dog", "Käse", "1", ""]
MEANS = (0.4, 0.5, 0.6)
STDS = (0.2, 0.25, 0.3)

Score = Callable[[Tensor], Tensor]


def cifar(seed: int, channels: int = 3) -> CifarResNet:
    return with_lived_statistics(CifarResNet(8, channels, generator(seed, "test")), channels)


def with_lived_statistics(backbone: nn.Module, channels: int = 3) -> nn.Module:
    """Scales and statistics of batch norm that a wrong folding would show."""
    torch.manual_seed(0)
    for part in backbone.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.3)
    backbone.train()
    with torch.no_grad():
        backbone(torch.randn(8, channels, 16, 16))
    return backbone.eval()


def head(in_features: int) -> LinearHead:
    return LinearHead(in_features, len(NAMES), generator(0, "head"))


def preprocessing(channels: int = 3, height: int = 16, width: int = 16) -> Preprocessing:
    return Preprocessing((channels, height, width), MEANS[:channels], STDS[:channels])


def export(
    path: Path,
    score: Score,
    backbones: Sequence[nn.Module],
    channels: int = 3,
    masked: Sequence[int] = (),
) -> None:
    export_onnx(
        score, backbones, preprocessing(channels), NAMES, masked, path, method="grace", version=3
    )


def some_images(num: int, channels: int = 3) -> Tensor:
    """Images of few large patches, so that they differ in more than noise."""
    patches = 255 * torch.rand(num, channels, 3, 3, generator=generator(1))
    return nn.functional.interpolate(patches, (16, 16)).to(torch.uint8)


@torch.no_grad()
def learners_logits(score: Score, backbones: Sequence[nn.Module], images: Tensor) -> Tensor:
    channels = images.shape[1]
    mean = torch.tensor(MEANS[:channels])[:, None, None]
    std = torch.tensor(STDS[:channels])[:, None, None]
    normalised = (images / 255 - mean) / std
    return score(torch.cat([backbone(normalised) for backbone in backbones], dim=1))


def run(path: Path, pixels: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": pixels.numpy()})
    return np.asarray(logits)


def means_score() -> Score:
    """A score as methods give it: no module, with class means that it closes over."""
    means = nn.functional.normalize(torch.rand(len(NAMES), 64, generator=generator(0)), dim=1)
    return lambda features: nearest_mean(features.float(), means)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LinearHead, CifarResNet]:
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    masked, backbone = head(64), cifar(0)
    # Centred logits, so that not all images are of one class.
    logits = learners_logits(masked, [backbone], some_images(32))
    masked.bias.data -= logits.mean(dim=0)
    masked.mask([1])
    export(path, masked, [backbone], masked=[1])
    return path, masked, backbone


@pytest.mark.parametrize(
    ("build", "channels"),
    [
        (lambda: (head(64), [cifar(0, 1)]), 1),
        (lambda: (means_score(), [cifar(0)]), 3),
        (
            lambda: (
                head(512),
                [with_lived_statistics(TorchvisionResNet("resnet18", "conv3", 3, 0))],
            ),
            3,
        ),
        (lambda: (head(512), [with_lived_statistics(TimmBackbone("resnet10t", 3, 0))]), 3),
    ],
    ids=["grey", "nearest mean", "resnet18", "timm"],
)
def test_the_file_gives_the_learners_logits_for_any_number_of_images(
    build: Callable[[], tuple[Score, list[nn.Module]]], channels: int, tmp_path: Path
) -> None:
    score, backbones = build()
    path = tmp_path / "model.onnx"
    export(path, score, backbones, channels)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]
    images = some_images(7, channels)
    expected = learners_logits(score, backbones, images)
    for num in (1, 3, 7):
        found = run(path, images[:num] / 255)
        assert found == pytest.approx(expected[:num].numpy(), rel=0, abs=1e-4)
    check = check_onnx(path, images, expected)
    assert (check.num_images, check.same_argmax) == (7, 7)
    assert check.max_difference < 1e-4


def test_a_network_of_two_backbones_is_exported_in_their_order(tmp_path: Path) -> None:
    network = ExpandableNetwork([cifar(0), cifar(1)], head(128)).eval()
    # as the engine lays networks out
    network.to(memory_format=torch.channels_last)
    path = tmp_path / "model.onnx"
    export(path, network.head, list(network.backbones))
    images = some_images(4)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEANS, STDS))
    with torch.no_grad():
        logits = network((images / 255 - mean) / std)
    assert check_onnx(path, images, logits).same_argmax == 4


def test_exporting_leaves_the_learner_as_it_was(tmp_path: Path) -> None:
    score, backbone = head(64), cifar(0).train()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    state = torch.get_rng_state()
    export(tmp_path / "model.onnx", score, [backbone])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert backbone.training
    assert all(part.requires_grad for part in (*backbone.parameters(), *score.parameters()))


def test_a_forgotten_class_is_never_predicted(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    path, _, _ = exported
    logits = run(path, some_images(5) / 255)
    assert logits[:, 1].tolist() == [-1e4] * 5
    assert np.abs(np.delete(logits, 1, axis=1)).max() < 100


def test_the_metadata_tells_all_that_a_program_must_know(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    found = {entry.key: entry.value for entry in onnx.load(exported[0]).metadata_props}
    worded = ("fit", "resize", "grace_version", "model_version", "method", "unknown_score")
    words = {key: found.pop(key) for key in worded}
    assert {key: json.loads(value) for key, value in found.items()} == {
        "class_names": NAMES,
        "masked_classes": [1],
        "input_size": [3, 16, 16],
        "input_range": [0, 1],
        "mean": list(MEANS),
        "std": list(STDS),
        "unknown_below": {},
    }
    assert words == {
        "fit": "crop",
        "resize": "shorter side to 16 pixels, bilinear with antialiasing, then centre crop",
        "grace_version": grace.__version__,
        "model_version": "3",
        "method": "grace",
        "unknown_score": "energy",
    }


def test_the_file_is_one_graph_without_batch_norm_or_traces_of_the_machine(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    path, _, backbone = exported
    model = onnx.load(path, load_external_data=False)
    (images,), outputs = model.graph.input, model.graph.output
    assert images.name == "images"
    assert [own.name for own in outputs] == ["logits", "probabilities", "familiarity"]
    dims = images.type.tensor_type.shape.dim
    assert [dim.dim_value or "free" for dim in dims] == ["free", 3, 16, 16]
    kinds = [node.op_type for node in model.graph.node]
    assert "BatchNormalization" not in kinds
    # ResNet-8 has a stem and 6 convolutions in blocks.
    assert kinds.count("Conv") == 7
    content = path.read_bytes()
    assert not [place for place in (str(ROOT), "site-packages", ".py") if place.encode() in content]
    weights = sum(value.nbytes for value in backbone.parameters())
    assert weights < len(content) < 1.2 * weights


def test_pictures_that_are_not_square_are_not_resized() -> None:
    words = preprocessing(height=8, width=24).resizing()
    assert words == "none: every picture is 24 pixels wide and 8 high"


def test_a_file_that_predicts_otherwise_is_refused_with_the_difference(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    path, score, backbone = exported
    images = some_images(6)
    logits = learners_logits(score, [backbone], images)
    off = logits.clone()
    off[4, 2] += 0.002
    with pytest.raises(ValueError, match=r"differ by up to 0\.002 .* and 0 of 6 images get"):
        check_onnx(path, images, off)
    with pytest.raises(ValueError, match="and 6 of 6 images get another class"):
        check_onnx(path, images, logits.roll(1, dims=1))
    off[4, 2] = float("nan")
    with pytest.raises(ValueError, match="differ by up to nan"):
        check_onnx(path, images, off)


def test_large_logits_may_differ_by_the_rounding_of_their_size(tmp_path: Path) -> None:
    def score(features: Tensor) -> Tensor:
        logits = 1000 * features[:, :5]
        return torch.cat([logits[:, :4], torch.full_like(logits[:, 4:], -1e4)], dim=1)

    path, images = tmp_path / "model.onnx", some_images(2)
    # of 1000 (1 − 0.4) / 0.2 = 3000 a hundred-thousandth is 0.03, whatever the hidden class has
    images[0] = 255
    export(path, score, [nn.Flatten()])
    logits = learners_logits(score, [nn.Flatten()], images)
    assert logits[0].tolist() == pytest.approx([3000, 3000, 3000, 3000, -10000])
    logits[0, 1] -= 0.02
    assert check_onnx(path, images, logits).max_difference == pytest.approx(0.02, abs=1e-3)
    logits[0, 1] -= 0.02
    with pytest.raises(ValueError, match=r"differ by up to 0\.04"):
        check_onnx(path, images, logits)


def test_every_image_is_checked_in_whatever_batch_it_comes(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    path, score, backbone = exported
    # 1 + 2 + … + 64 = 127, then 64 and 9
    images = some_images(200)
    logits = learners_logits(score, [backbone], images)
    assert check_onnx(path, images, logits).num_images == 200
    for place in (0, 126, 127, 199):
        off = logits.clone()
        off[place] += 1
        with pytest.raises(ValueError, match=r"differ by up to 1 \(.* and 0 of 200"):
            check_onnx(path, images, off)


def test_nothing_is_written_over(exported: tuple[Path, LinearHead, CifarResNet]) -> None:
    path, score, backbone = exported
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"model\.onnx' exists already"):
        export(path, score, [backbone])
    assert path.read_bytes() == before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder '.*nowhere' to export into"):
        export(tmp_path / "nowhere" / "model.onnx", head(64), [cifar(0)])


@pytest.mark.parametrize("library", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_extra_is_named(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=r"pip install 'grace-cil\[onnx\]'"):
        export(tmp_path / "model.onnx", head(64), [cifar(0)])
    with pytest.raises(ValueError, match=r"pip install 'grace-cil\[onnx\]'"):
        load_onnx(tmp_path / "model.onnx")


class Undecided(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        features = images.flatten(1)
        return features if features.sum() > 0 else -features


def test_a_model_that_cannot_be_exported_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be exported to ONNX") as caught:
        export(tmp_path / "model.onnx", head(768), [Undecided().eval()])
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_weights_beyond_one_file_are_refused(tmp_path: Path) -> None:
    # 2³¹ bytes of weights, none of them allocated
    backbone = nn.Linear(2**14, 2**15, bias=False, device="meta")
    with pytest.raises(ValueError, match=r"holds 2 GiB, these weights take 2\.0 GiB"):
        export(tmp_path / "model.onnx", nn.Identity(), [backbone])


def test_latency_is_the_median_after_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    # two slow calls to warm up, then 3, 1 and 8 ms
    durations = iter([5.0, 5.0, 0.003, 0.001, 0.008])

    def call() -> None:
        nonlocal now
        now += next(durations)

    monkeypatch.setattr("grace.learner.export.perf_counter", lambda: now)
    assert latency(call, repeats=3, warm_up=2) == pytest.approx(3.0)


def save_pictures(folder: Path) -> list[Path]:
    """A wide, a high, a square and a partly transparent picture, with structure at every scale."""
    rng = np.random.default_rng(0)
    shapes = [(37, 61, 3), (50, 23, 3), (16, 16, 3), (40, 44, 4)]
    paths = [folder / f"picture {number}.png" for number in range(len(shapes))]
    for path, (height, width, bands) in zip(paths, shapes, strict=True):
        coarse = rng.integers(0, 256, (3, 3, bands), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture.save(path)
    return paths


def test_the_example_predicts_without_torch_and_grace(
    exported: tuple[Path, LinearHead, CifarResNet], tmp_path: Path
) -> None:
    model, score, backbone = exported
    paths = save_pictures(tmp_path)
    # None in sys.modules makes every import of that name fail.
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['grace'] = None\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = ROOT / "examples" / "predict_with_onnx.py"
    command = [sys.executable, "-W", "error", "-c", code, str(script), str(model), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pixels = torch.stack([torch.from_numpy(read_pixels(path, 3, 16)) for path in paths])
    logits = learners_logits(score, [backbone], pixels.permute(0, 3, 1, 2))
    shares, classes = logits.softmax(dim=1).max(dim=1)
    assert len(classes.unique()) > 1
    assert done.stdout.splitlines() == [
        f"{path}: {NAMES[int(index)]} {float(share):.1%}"
        for path, index, share in zip(paths, classes, shares, strict=True)
    ]
