"""Export a predictor to one ONNX file, which other programs run without torch and grace.

The graph takes pixels in [0, 1] and normalises them itself, so that no user of the file can get the
constants wrong. The file's metadata describes how to make such pixels and what the outputs mean.

Shapes: N images, C channels, H×W pixels, K classes.
"""

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor, nn
from typing_extensions import override

import grace
from grace.base.atomic import write_bytes
from grace.base.errors import GraceError
from grace.base.words import first_line
from grace.data.augmentation import Enlarge
from grace.data.squares import GREY
from grace.learner.familiarity import UnknownScore
from grace.learner.onnx_graph import send_no_reports
from grace.learner.unknown import Recogniser
from grace.nn.expandable import copy_of
from grace.nn.folding import folded
from grace.nn.heads import MASKED
from grace.settings.experiment import Fit

_OUTPUTS = ("logits", "probabilities", "familiarity")


@final
@dataclass(frozen=True)
class Preprocessing:
    """How a picture is converted into the network's input.

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

    def __post_init__(self) -> None:
        assert len(self.mean) == len(self.std) == self.shape[0]

    def metadata(self) -> dict[str, str]:
        """Return what an exported file's metadata say of its input.

        As JSON: ``input_size`` [C, H, W], ``input_range``, ``mean`` and ``std`` (already applied
        inside); as words: ``fit`` (``crop`` or ``letterbox``) and ``resize``.
        """
        return {
            "input_size": json.dumps(self.shape),
            "input_range": json.dumps([0, 1]),
            "mean": json.dumps(self.mean),
            "std": json.dumps(self.std),
            "resize": self.resizing(),
            "fit": self.fit,
        }

    def resizing(self) -> str:
        """Describe in words how a picture is resized to H×W (``squared``)."""
        _, height, width = self.shape
        if height != width:
            return f"none: every picture is {width} pixels wide and {height} high"
        if self.fit == "letterbox":
            return (
                f"letterbox: longer side to {height} pixels, bilinear with antialiasing, then "
                f"centred on a square of grey {GREY}"
            )
        return f"shorter side to {height} pixels, bilinear with antialiasing, then centre crop"


@final
@dataclass(frozen=True)
class OnnxCheck:
    """The result of comparing an exported file with its learner."""

    num_images: int
    max_difference: float
    """Largest |difference| of a logit."""
    same_argmax: int
    """Number of images with the same predicted class: all of them."""


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


def export_onnx(
    score: Callable[[Tensor], Tensor],
    backbones: Sequence[nn.Module],
    preprocessing: Preprocessing,
    class_names: Sequence[str],
    masked: Sequence[int],
    path: Path,
    *,
    method: str,
    version: int,
    unknown: Recogniser | None = None,
) -> None:
    """Write a predictor as one ONNX file.

    Its input ``images`` is float32 (N, C, H, W) with pixels in [0, 1] and any N, its outputs are
    float32: ``logits`` and ``probabilities`` (N, K), and ``familiarity`` (N,), which is low for
    images unlike anything learnt. The metadata holds, as JSON, ``class_names`` by output index,
    ``masked_classes`` (output indices that are never predicted) and ``unknown_below`` (familiarity
    below which an image is unknown, by the share of false alarms); as words, ``unknown_score``,
    ``grace_version``, ``model_version`` and ``method``; and :meth:`Preprocessing.metadata`.

    Args:
        score: maps concatenated features (N, D) to logits (N, K); it masks the masked classes.
        backbones: in the order of the features; not changed.
        preprocessing: input shape and normalisation constants.
        class_names: K names.
        masked: indices of forgotten classes.
        path: file to write; its folder must exist, the file must not.
        method: name of the method.
        version: version of the model.
        unknown: recognises unknown images; ``None``: by energy, without limits.

    Raises:
        GraceError: if a library is missing, the file exists, its folder does not, the weights
            exceed what one ONNX file holds (2 GiB), or a part cannot be exported.
    """
    _check_libraries()
    _check_place(path)
    assert all(0 <= index < len(class_names) for index in masked)
    unknown = unknown or Recogniser()
    graph = _Graph(score, backbones, preprocessing, unknown.score).eval()
    device = next((tensor.device for tensor in graph.backbones.parameters()), torch.device("cpu"))
    proto = _converted(graph.to(device), torch.zeros(2, *preprocessing.shape, device=device))
    num_outputs = proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    assert num_outputs == len(class_names), f"{num_outputs} logits, {len(class_names)} names"
    _remove_traces(proto)
    metadata = {
        "class_names": json.dumps(list(class_names)),
        "masked_classes": json.dumps(sorted(masked)),
        "model_version": str(version),
        "method": method,
        "grace_version": grace.__version__,
        "unknown_score": unknown.score.name,
        "unknown_below": json.dumps(unknown.limits()),
        **preprocessing.metadata(),
    }
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    proto.producer_name, proto.producer_version = "grace", grace.__version__
    write_bytes(path, proto.SerializeToString())


def traced(
    score: Callable[[Tensor], Tensor],
    backbones: Sequence[nn.Module],
    preprocessing: Preprocessing,
    familiarity: UnknownScore,
) -> bytes:
    """Return the graph of ``export_onnx`` without metadata, by torch's older exporter.

    It takes a tenth of the seconds and needs no other package. It records what two images did:
    compare its answers for other numbers of images before they are used.

    Args:
        score: maps concatenated features (N, D) to logits (N, K).
        backbones: in the order of the features; not changed.
        preprocessing: input shape and normalisation constants.
        familiarity: of unknown images.

    Raises:
        Exception: of many types, if a part cannot be exported.
    """
    graph = _Graph(score, backbones, preprocessing, familiarity).eval()
    file = io.BytesIO()
    with torch.no_grad():
        torch.onnx.export(
            graph,
            (torch.zeros(2, *preprocessing.shape),),
            file,  # type: ignore[arg-type]
            dynamo=False,
            input_names=["images"],
            output_names=list(_OUTPUTS),
            dynamic_axes={"images": {0: "N"}},
        )
    return file.getvalue()


def load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Open an exported file with onnxruntime, on the CPU with torch's number of threads.

    Args:
        path: a file of ``export_onnx``.

    Returns:
        A function from images (N, C, H, W) uint8 to logits (N, K) float32.

    Raises:
        GraceError: if a library is missing.
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


def check_onnx(path: Path, images: Tensor, logits: Tensor) -> OnnxCheck:
    """Compare an exported file, run by onnxruntime in batches of 1, 2, 4, … 64, with its learner.

    Args:
        path: a file of ``export_onnx``; not changed.
        images: (N, C, H, W) uint8, N at least 1.
        logits: (N, K) float32, the learner's logits of these images, in full float32 precision
            (not the TF32 of a GPU).

    Raises:
        GraceError: if a logit differs by more than 1e-4 and than 1e-5 of the image's largest logit
            (float32 rounds relative to it), or a predicted class differs.
    """
    assert len(images) == len(logits) > 0
    run = load_onnx(path)
    found = torch.cat([run(batch) for batch in _growing_batches(images)])
    logits = logits.cpu()
    assert found.shape == logits.shape
    differences = (found - logits).abs()
    largest = logits.masked_fill(logits <= MASKED, 0).abs().amax(dim=1, keepdim=True)
    # A logit that is not a number is not close.
    is_close = bool((differences <= (1e-5 * largest).clamp(min=1e-4)).all())
    check = OnnxCheck(
        num_images=len(images),
        max_difference=float(differences.max()),
        same_argmax=int((found.argmax(dim=1) == logits.argmax(dim=1)).sum()),
    )
    if not is_close or check.same_argmax < len(images):
        raise GraceError(
            f"the exported file '{path}' does not predict what its learner predicts: its "
            f"logits differ by up to {check.max_difference:.2g} (0.0001 is rounding), and "
            f"{len(images) - check.same_argmax} of {len(images)} images get another class",
            "do not use it, and please report this",
        )
    return check


def latency(run: Callable[[], object], repeats: int = 30, warm_up: int = 5) -> float:
    """Measure how long one call takes.

    Args:
        run: the function to measure.
        repeats: number of timed calls, at least 1.
        warm_up: number of calls before the timed ones.

    Returns:
        Median in milliseconds.
    """
    for _ in range(warm_up):
        run()
    seconds = []
    for _ in range(repeats):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return 1000 * median(seconds)


def _check_libraries() -> None:
    send_no_reports()
    try:
        # Late, because they belong to an extra and take a second.
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise GraceError(
            "exporting needs onnx, onnxscript and onnxruntime", "pip install 'grace-cil[onnx]'"
        ) from error


def _check_place(path: Path) -> None:
    if path.exists():
        raise GraceError(f"'{path}' exists already", "choose another name or remove it")
    if not path.parent.is_dir():
        raise GraceError(f"there is no folder '{path.parent}' to export into", "create it")


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
                output_names=list(_OUTPUTS),
                # Keyed by the name of forward's argument, not by that of the input.
                dynamic_shapes={"images": {0: torch.export.Dim("N", min=1)}},
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = first_line(error.__cause__ or error)
        raise GraceError(
            f"this model cannot be exported to ONNX ({reason})", "use one of grace's own backbones"
        ) from error
    assert program is not None
    proto = program.model_proto
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _remove_traces(proto: Any) -> None:  # noqa: ANN401 - an onnx.ModelProto
    """Remove the exporter's notes, which contain source paths of this machine."""
    graph = proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
    for tensor in graph.initializer:
        del tensor.metadata_props[:]


def _growing_batches(images: Tensor) -> Iterator[Tensor]:
    """Split images (N, C, H, W) into batches of 1, 2, 4, … 64 and then 64 images."""
    start, size = 0, 1
    while start < len(images):
        yield images[start : start + size]
        start, size = start + size, min(2 * size, 64)
