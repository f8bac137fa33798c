"""Export a predictor to one ONNX file for programs without torch and grace, and check the file.

Its input ``images`` is float32 (N, C, H, W) with pixels in [0, 1] and any N: the graph normalises
them itself. Its outputs are float32: ``logits`` and ``probabilities`` (N, K), and ``familiarity``
(N,), which is low for images unlike anything learnt. The entry ``grace`` of its metadata is JSON:
see ``grace.learner.exported.About``.

Shapes: N images, C channels, H×W pixels, D features, K classes.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from typing_extensions import override

import grace
from grace.base import atomic
from grace.base.errors import GraceError
from grace.base.randomness import generator
from grace.data.augmentation import Enlarge
from grace.data.images import LabelledImages, TensorImages
from grace.learner.calibration import Recogniser
from grace.learner.exported import About, open_session, refuse_place
from grace.learner.model import Model
from grace.learner.prediction import cutoff
from grace.methods.classifier import Classifier
from grace.methods.scoring import scores
from grace.nn.expandable import copy_of, folded
from grace.nn.heads import MASKED

ImageKind = Literal["held-out images", "exemplars", "images of noise"]
MOST_CHECKED = 256
"""Most images that a file is checked on."""


@final
@dataclass(frozen=True)
class Exported:
    """The result of an export: on all checked images the file predicts the learner's class."""

    num_images: int
    checked_on: ImageKind
    max_difference: float
    """Largest |difference| of a logit."""


@final
class Graph(nn.Module):
    """What is exported: ``score([φ₁(z), …, φ_b(z)])`` with ``z = (x − mean) / std``.

    Args:
        classifier: the predictor, which is not changed; its score masks forgotten classes.
        mean: normalisation constants per channel, of pixels x in [0, 1].
        std: likewise.
        recogniser: says how familiar images look; ``None``: their energy.
        enlarge: enlarges normalised images; ``None``: they keep their size.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        classifier: Classifier,
        mean: Sequence[float],
        std: Sequence[float],
        recogniser: Recogniser | None = None,
        enlarge: Enlarge | None = None,
    ) -> None:
        super().__init__()
        self.familiarity = copy_of(recogniser or Recogniser())
        self.backbones = nn.ModuleList(folded(backbone) for backbone in classifier.backbones)
        score = classifier.score
        self.score = copy_of(score).requires_grad_(False) if isinstance(score, nn.Module) else score
        self.enlarge = enlarge
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    @override
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map pixels (N, C, H, W) in [0, 1] to logits, probabilities (N, K), familiarity (N,)."""
        normalised = (images - self.mean) / self.std
        if self.enlarge is not None:
            normalised = self.enlarge(normalised)
        features = torch.cat([backbone(normalised) for backbone in self.backbones], dim=1)
        logits = self.score(features)
        return logits, logits.softmax(dim=1), self.familiarity(features, logits)


def export_checked(model: Model, path: Path, *, replace: bool = False) -> Exported:
    """Write a model's predictor to a file, which gets its name only after it passed its check.

    It is checked on held-out images; if there are none, on exemplars; if none of those, on noise.

    Args:
        model: a model that has learnt something.
        path: file to write.
        replace: replace an existing file.

    Raises:
        GraceError: if the file exists, its folder does not, the model cannot be exported, or the
            file's predictions differ from the model's.
    """
    refuse_place(path, replace=replace)
    state, classifier = model.state, model.classifier()
    images, kind = _check_images(model)
    data = LabelledImages(TensorImages(images), torch.zeros(len(images), dtype=torch.int64))
    # By default a GPU's convolutions round to TF32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        logits = scores(model.trainer, {"": classifier}, data)[""]
    familiarities = state.recogniser.familiarities.tolist()
    rates = [rate for rate in (0.01, 0.02, 0.05, 0.1) if rate * (len(familiarities) + 1) >= 1]
    about = About(
        class_names=tuple(state.class_names),
        masked_classes=tuple(sorted(state.forgotten)),
        input_size=model.shape,
        fit=model.settings.data.fit,
        familiarities=tuple(familiarities),
        unknown_below={f"{rate:g}": cutoff(familiarities, rate) for rate in rates},
        method=state.method.settings.name,
        model_version=state.version or 0,
        grace_version=grace.__version__,
    )
    beside = atomic.unfinished(path)
    try:
        graph = Graph(classifier, model.mean, model.std, state.recogniser, model.enlarge)
        write_onnx(graph, about, beside)
        difference = check_onnx(beside, images, logits)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return Exported(len(images), kind, difference)


def write_onnx(graph: Graph, about: About, path: Path) -> None:
    """Write a graph as one ONNX file.

    Raises:
        GraceError: if a library is missing, the weights exceed what one ONNX file holds (2 GiB),
            or a part cannot be exported.
    """
    # They belong to an extra.
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise GraceError(
            "exporting needs onnx, onnxscript and onnxruntime", "pip install 'grace-cil[onnx]'"
        )
    import onnx

    num_bytes = sum(tensor.nbytes for tensor in graph.state_dict().values())
    # The graph beside the weights takes well below 16 MiB.
    if num_bytes > 2**31 - 2**24:
        raise GraceError(
            f"one ONNX file holds 2 GiB, these weights take {num_bytes / 2**30:.1f} GiB",
            "compress the model or use a smaller backbone",
        )
    proto = _traced(graph, about.input_size)
    onnx.checker.check_model(proto, full_check=True)
    # The exporter's notes contain source paths of this machine.
    own = proto.graph
    for part in (own, *own.node, *own.input, *own.output, *own.value_info, *own.initializer):
        del part.metadata_props[:]
    onnx.helper.set_model_props(proto, {"grace": about.model_dump_json()})
    atomic.write_bytes(path, proto.SerializeToString())


def _traced(graph: Graph, shape: tuple[int, int, int]) -> Any:  # noqa: ANN401 - an onnx.ModelProto
    """Trace a graph with two images of a shape; return an ONNX model for any number of them."""
    device = next((tensor.device for tensor in graph.backbones.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Of torch's own parts about each other.
            warnings.simplefilter("ignore", FutureWarning)
            program = torch.onnx.export(
                graph.eval().to(device),
                (torch.zeros(2, *shape, device=device),),
                dynamo=True,
                input_names=["images"],
                output_names=["logits", "probabilities", "familiarity"],
                # Keyed by the name of forward's argument, not by that of the input.
                dynamic_shapes={"images": {0: torch.export.Dim("N", min=1)}},
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        # Torch's own words name folders and functions of this machine.
        reason = type(error.__cause__ or error).__name__
        raise GraceError(
            f"torch cannot export this model to ONNX ({reason})", "use one of grace's own backbones"
        ) from error
    assert program is not None
    return program.model_proto


def check_onnx(path: Path, images: Tensor, logits: Tensor) -> float:
    """Compare an exported file, run by onnxruntime on batches of several sizes, with its learner.

    Args:
        path: a file of ``write_onnx``.
        images: (N, C, H, W) uint8, N at least 1.
        logits: (N, K) float32, the learner's logits of these images, in full float32 precision
            (not the TF32 of a GPU).

    Returns:
        The largest |difference| of a logit.

    Raises:
        GraceError: if a logit differs by more than 1e-4 and than 1e-5 of the image's largest logit
            (float32 rounds relative to it), or a predicted class differs.
    """
    session = open_session(path.read_bytes(), f"'{path}'")
    pixels = images.cpu().float() / 255
    batches = [batch.numpy() for batch in (pixels[:1], *pixels[1:].split(64)) if len(batch)]
    parts = [session.run(["logits"], {"images": batch})[0] for batch in batches]
    found, logits = torch.cat([torch.from_numpy(part) for part in parts]), logits.cpu()
    assert found.shape == logits.shape
    differences = (found - logits).abs()
    largest = logits.masked_fill(logits <= MASKED, 0).abs().amax(dim=1, keepdim=True)
    # A logit that is not a number is not close.
    is_close = bool((differences <= (1e-5 * largest).clamp(min=1e-4)).all())
    num_others = int((found.argmax(dim=1) != logits.argmax(dim=1)).sum())
    if not is_close or num_others:
        raise GraceError(
            "the exported file does not predict what its learner predicts: its logits differ by "
            f"up to {float(differences.max()):.2g} (0.0001 is rounding), and {num_others} of "
            f"{len(images)} images get another class",
            "please report this",
        )
    return float(differences.max())


def _check_images(model: Model) -> tuple[Tensor, ImageKind]:
    """Choose images (N, C, H, W) at even distances, and say what they are."""
    held_out, exemplars = model.state.held_out.data(), model.state.method.memory.data()
    kind: ImageKind = "exemplars" if held_out is None else "held-out images"
    data = exemplars if held_out is None else held_out
    if len(data.labels) == 0:
        noise = torch.randint(0, 256, (32, *model.shape), generator=generator(0, "export"))
        return noise.to(torch.uint8), "images of noise"
    places = torch.arange(0, len(data.labels), -(-len(data.labels) // MOST_CHECKED))
    return data.images.gather(places).cpu(), kind
