"""Export a predictor to one ONNX file for programs without torch and grace, and check the file.

Its input ``images`` is float32 (N, C, H, W) with pixels in [0, 1] and any N: the graph normalises
them itself. Its outputs are float32: ``logits`` and ``probabilities`` (N, K), and ``familiarity``
(N,), which is low for images unlike anything learnt. The metadata holds, as JSON:

- ``class_names`` by output index, and ``masked_classes``, which are never predicted;
- ``input_size`` [C, H, W], and ``mean`` and ``std``, which the graph applies;
- ``unknown_below``: familiarity below which an image is unknown, by share of false alarms;
- ``familiarities`` of the held-out images, from which such limits are computed;

and as words ``fit`` (see ``grace.data.decoding``), ``unknown_score``, ``method``, ``model_version``
and ``grace_version``.

Shapes: N images, C channels, H×W pixels, D features, K classes.
"""

import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from grace.learner.model import Model
from grace.learner.unknown import Recogniser, UnknownScore
from grace.methods.scoring import scores
from grace.nn.expandable import copy_of, folded
from grace.nn.heads import MASKED
from grace.settings.experiment import Fit

ImageKind = Literal["held-out images", "exemplars", "images of noise"]
MOST_CHECKED = 256
"""Most images that a file is checked on."""


@final
@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the network's input.

    Args:
        shape: (C, H, W) of the input.
        mean: normalisation constants per channel, of pixels in [0, 1].
        std: likewise.
        enlarge: enlarges normalised images inside the graph; ``None``: they keep their size.
        fit: how a picture becomes a square.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    enlarge: Enlarge | None = None
    fit: Fit = "crop"

    def metadata(self) -> dict[str, str]:
        """Return what an exported file says of its input."""
        numbers = {"input_size": self.shape, "mean": self.mean, "std": self.std}
        return {"fit": self.fit, **{key: json.dumps(own) for key, own in numbers.items()}}


@final
@dataclass(frozen=True)
class Exported:
    """The result of an export: on all checked images the file predicts the learner's class."""

    num_images: int
    checked_on: ImageKind
    max_difference: float
    """Largest |difference| of a logit."""
    labels: Path
    """File of the class names, one a line, in the order of the outputs."""


@final
class _Graph(nn.Module):
    """``score([φ₁(z), …, φ_b(z)])`` with ``z = (x − mean) / std`` for pixels x in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        score: Callable[[Tensor], Tensor],
        backbones: Sequence[nn.Module],
        preprocessing: Preprocessing,
        familiarity: UnknownScore,
    ) -> None:
        super().__init__()
        self.familiarity = copy_of(familiarity)
        self.backbones = nn.ModuleList(folded(backbone) for backbone in backbones)
        self.score = copy_of(score).requires_grad_(False) if isinstance(score, nn.Module) else score
        self.enlarge = preprocessing.enlarge
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(-1, 1, 1))

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
    """Write the chosen predictor to a file, which gets its name only after it passed its check.

    It is checked on held-out images; if there are none, on exemplars; if none of those, on noise.

    Args:
        model: a model that has learnt something.
        path: file to write; the names of the classes are written to ``<stem>.labels.txt``.
        replace: replace existing files.

    Raises:
        GraceError: if a file exists, its folder does not, the model cannot be exported, or the
            file's predictions differ from the model's.
    """
    labels = path.with_suffix(".labels.txt")
    for taken in (path, labels):
        if taken.exists() and not replace:
            raise GraceError(f"'{taken}' exists already", "choose another name or remove it")
    if not path.parent.is_dir():
        raise GraceError(f"there is no folder '{path.parent}' to export into", "create it")
    state, classifier = model.state, model.classifier()
    images, kind = _check_images(model)
    data = LabelledImages(TensorImages(images), torch.zeros(len(images), dtype=torch.int64))
    # By default a GPU's convolutions round to TF32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        logits = scores(model.trainer, {"": classifier}, data)[""]
    beside = atomic.unfinished(path)
    try:
        export_onnx(
            classifier.score,
            classifier.backbones,
            Preprocessing(
                model.shape, model.mean, model.std, model.enlarge, model.settings.data.fit
            ),
            state.class_names,
            sorted(state.forgotten),
            beside,
            method=state.method.settings.name,
            version=state.version or 0,
            unknown=state.recogniser,
        )
        difference = check_onnx(beside, images, logits)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    atomic.write_bytes(labels, "".join(f"{name}\n" for name in state.class_names).encode())
    return Exported(len(images), kind, difference, labels)


def export_onnx(
    score: Callable[[Tensor], Tensor],
    backbones: Sequence[nn.Module],
    preprocessing: Preprocessing,
    class_names: Sequence[str],
    masked: list[int],
    path: Path,
    *,
    method: str,
    version: int,
    unknown: Recogniser | None = None,
) -> None:
    """Write a predictor as one ONNX file.

    Args:
        score: maps concatenated features (N, D) to logits (N, K); it masks the masked classes.
        backbones: in the order of the features; not changed.
        preprocessing: input shape and normalisation constants.
        class_names: K names.
        masked: indices of forgotten classes.
        path: file to write.
        method: name of the method.
        version: version of the model.
        unknown: recognises unknown images; ``None``: by energy, without limits.

    Raises:
        GraceError: if a library is missing, the weights exceed what one ONNX file holds (2 GiB),
            or a part cannot be exported.
    """
    _check_libraries()
    unknown = unknown or Recogniser()
    graph = _Graph(score, backbones, preprocessing, unknown.score).eval()
    device = next((tensor.device for tensor in graph.backbones.parameters()), torch.device("cpu"))
    proto = _converted(graph.to(device), torch.zeros(2, *preprocessing.shape, device=device))
    words = {"method": method, "model_version": str(version), "grace_version": grace.__version__}
    names = {"class_names": json.dumps(list(class_names)), "masked_classes": json.dumps(masked)}
    for key, value in {**words, **names, **preprocessing.metadata(), **unknown.metadata()}.items():
        proto.metadata_props.add(key=key, value=value)
    proto.producer_name, proto.producer_version = "grace", grace.__version__
    atomic.write_bytes(path, proto.SerializeToString())


def load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Return an exported file as a function from images (N, C, H, W) uint8 to logits (N, K).

    It is run by onnxruntime, on the CPU with torch's number of threads.
    """
    _check_libraries()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        pixels = (images.cpu().float() / 255).numpy()
        return torch.from_numpy(session.run(["logits"], {"images": pixels})[0])

    return run


def check_onnx(path: Path, images: Tensor, logits: Tensor) -> float:
    """Compare an exported file, run by onnxruntime on batches of several sizes, with its learner.

    Args:
        path: a file of ``export_onnx``.
        images: (N, C, H, W) uint8, N at least 1.
        logits: (N, K) float32, the learner's logits of these images, in full float32 precision
            (not the TF32 of a GPU).

    Returns:
        The largest |difference| of a logit.

    Raises:
        GraceError: if a logit differs by more than 1e-4 and than 1e-5 of the image's largest logit
            (float32 rounds relative to it), or a predicted class differs.
    """
    run = load_onnx(path)
    found = torch.cat([run(batch) for batch in (images[:1], *images[1:].split(64)) if len(batch)])
    logits = logits.cpu()
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


def _check_libraries() -> None:
    # Otherwise onnxruntime's published packages send events to their makers.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        # Late, because they belong to an extra and take a second.
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise GraceError(
            "exporting needs onnx, onnxscript and onnxruntime", "pip install 'grace-cil[onnx]'"
        ) from error


def _converted(graph: _Graph, example: Tensor) -> Any:  # noqa: ANN401 - an onnx.ModelProto
    """Trace the graph with images (2, C, H, W); return a checked ONNX model for any number."""
    import onnx

    num_bytes = sum(tensor.nbytes for tensor in graph.state_dict().values())
    # The graph beside the weights takes well below 16 MiB.
    if num_bytes > 2**31 - 2**24:
        raise GraceError(
            f"one ONNX file holds 2 GiB, these weights take {num_bytes / 2**30:.1f} GiB",
            "compress the model or use a smaller backbone",
        )
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Of torch's own parts about each other.
            warnings.simplefilter("ignore", FutureWarning)
            program = torch.onnx.export(
                graph,
                (example,),
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
    proto = program.model_proto
    onnx.checker.check_model(proto, full_check=True)
    # The exporter's notes contain source paths of this machine.
    own = proto.graph
    for part in (own, *own.node, *own.input, *own.output, *own.value_info, *own.initializer):
        del part.metadata_props[:]
    return proto
