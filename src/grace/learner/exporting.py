"""Export a learner's predictor to an ONNX file, and check the file against it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from grace.base import atomic
from grace.base.errors import GraceError
from grace.base.randomness import generator
from grace.data.images import LabelledImages, TensorImages
from grace.learner.evaluation import scores
from grace.learner.export import OnnxCheck, Preprocessing, check_onnx, export_onnx, load_onnx
from grace.learner.held_out import HeldOut
from grace.learner.model import Model
from grace.learner.reduced_precision import (
    Agreement,
    Precision,
    agreement,
    reduce_precision,
    reduced_logits,
)
from grace.methods.method import Method


@final
@dataclass(frozen=True)
class Exported:
    """The result of an export: how well the file agrees with the learner."""

    check: OnnxCheck
    checked_on: Literal["held-out images", "exemplars", "images of noise"]
    labels: Path
    """File of the class names, one a line, in the order of the outputs."""
    agreement: Agreement | None = None
    """How a lower precision compares with float32."""


def labels_of(path: Path) -> Path:
    """Return the file of class names beside an exported file."""
    return path.with_suffix(".labels.txt")


def preprocessing_of(model: Model) -> Preprocessing:
    """Return how pictures become the input of a model."""
    fit = model.settings.data.fit
    return Preprocessing(model.shape, model.mean, model.std, model.enlarge, fit)


def export_checked(
    model: Model, path: Path, precision: Precision = "float32", *, replace: bool = False
) -> Exported:
    """Write the chosen predictor to a file, which gets its name only after it passed its check.

    It is checked on held-out images; if there are none, on exemplars; if none of those, on noise.

    Args:
        model: a model that has learnt something.
        path: file to write.
        precision: of the weights. Lower: a smaller file, whose answers may differ; it is checked
            as float32 before it is reduced, and int8 is calibrated on the same images.
        replace: replace existing files.

    Raises:
        GraceError: if a file exists, it cannot be exported, or the file's predictions differ from
            the model's.
    """
    for taken in (path, labels_of(path)):
        if taken.exists() and not replace:
            raise GraceError(f"'{taken}' exists already", "choose another name or remove it")
    state, classifier = model.state, model.classifier()
    images, labels, kind = check_images(state.method, state.held_out, model.shape)
    data = LabelledImages(TensorImages(images), torch.zeros(len(images), dtype=torch.int64))
    # By default a GPU's convolutions round to TF32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        logits = scores(model.trainer, {"": classifier}, data)[""]
    beside = atomic.unfinished(path)
    try:
        export_onnx(
            classifier.score,
            classifier.backbones,
            preprocessing_of(model),
            state.class_names,
            sorted(state.forgotten),
            beside,
            method=state.method.settings.name,
            version=state.version or 0,
            unknown=state.recogniser,
        )
        check = check_onnx(beside, images, logits)
        reduced = None
        if precision != "float32":
            reduce_precision(beside, precision, images)
            own = reduced_logits(load_onnx(beside), images)
            reduced = agreement(logits, own, labels if kind == "held-out images" else None)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    names = labels_of(path)
    atomic.write_bytes(names, "".join(f"{name}\n" for name in state.class_names).encode())
    return Exported(check, kind, names, reduced)


def check_images(
    method: Method[Any], held_out: HeldOut, shape: tuple[int, int, int], most: int = 256
) -> tuple[Tensor, Tensor, Literal["held-out images", "exemplars", "images of noise"]]:
    """Choose images (N, C, H, W) and labels (N,), at even distances; and say what they are.

    Args:
        method: its exemplars are taken if no images are held out; without any, noise is.
        held_out: of the learner.
        shape: (C, H, W) of an image.
        most: largest N; more show more.
    """
    kind: Literal["held-out images", "exemplars"] = "held-out images"
    data = held_out.data()
    if data is None:
        data, kind = method.memory.data(), "exemplars"
    if len(data.labels) == 0:
        noise = torch.randint(0, 256, (32, *shape), generator=generator(0, "export"))
        return noise.to(torch.uint8), torch.zeros(32, dtype=torch.int64), "images of noise"
    places = torch.arange(0, len(data.labels), -(-len(data.labels) // most))
    return data.images.gather(places).cpu(), data.labels[places].cpu(), kind
