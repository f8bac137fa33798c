"""Export a learner's predictor to an ONNX file, and check the file against it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from grace.data.images import LabelledImages, TensorImages
from grace.engine.trainer import Trainer
from grace.learner.evaluation import scores
from grace.learner.export import OnnxCheck, Preprocessing, check_onnx, export_onnx
from grace.learner.held_out import HeldOut
from grace.learner.model import Model
from grace.methods.classifier import Classifier
from grace.methods.method import Method
from grace.randomness import generator
from grace.storage import atomic


@final
@dataclass(frozen=True)
class Exported:
    """The result of an export: how well the file agrees with the learner."""

    check: OnnxCheck
    checked_on: Literal["held-out images", "exemplars", "images of noise"]


def preprocessing_of(model: Model) -> Preprocessing:
    """Return how pictures become the input of a model."""
    fit = model.settings.data.fit
    return Preprocessing(model.shape, model.mean, model.std, model.enlarge, fit)


def export_checked(
    method: Method[Any],
    classifier: Classifier,
    trainer: Trainer,
    held_out: HeldOut,
    preprocessing: Preprocessing,
    class_names: list[str],
    masked: list[int],
    path: Path,
    *,
    version: int,
) -> Exported:
    """Write a predictor to a file, which gets its name only after it passed its check.

    Args:
        method: a method that has learnt something.
        classifier: the predictor to export.
        trainer: computes the logits that the file must give, in full float32.
        held_out: images to check on; if there are none, exemplars; if none of those, noise.
        preprocessing: input shape and normalisation constants.
        class_names: names of all classes, by index.
        masked: indices of classes that were forgotten.
        path: file to write; an existing file is replaced.
        version: number of the learner's version.

    Raises:
        GraceError: if it cannot be exported, or the file's predictions differ from the learner's.
    """
    images, kind = _images(method, held_out, preprocessing.shape)
    data = LabelledImages(TensorImages(images), torch.zeros(len(images), dtype=torch.int64))
    # By default a GPU's convolutions round to TF32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        logits = scores(trainer, {"": classifier}, data)[""]
    beside = atomic.unfinished(path)
    try:
        export_onnx(
            classifier.score,
            classifier.backbones,
            preprocessing,
            class_names,
            masked,
            beside,
            method=method.settings.name,
            version=version,
        )
        check = check_onnx(beside, images, logits)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return Exported(check, kind)


def _images(
    method: Method[Any], held_out: HeldOut, shape: tuple[int, int, int], most: int = 256
) -> tuple[Tensor, Literal["held-out images", "exemplars", "images of noise"]]:
    """Choose at most ``most`` images (N, C, H, W) of a learner, at even distances."""
    kind: Literal["held-out images", "exemplars"] = "held-out images"
    data = held_out.data()
    if data is None:
        data, kind = method.memory.data(), "exemplars"
    if len(data.labels) == 0:
        noise = torch.randint(0, 256, (32, *shape), generator=generator(0, "export"))
        return noise.to(torch.uint8), "images of noise"
    places = torch.arange(0, len(data.labels), -(-len(data.labels) // most))
    return data.images.gather(places).cpu(), kind
