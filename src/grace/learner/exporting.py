"""A learner's primary predictor as an ONNX file that was checked against it."""

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
from grace.methods.method import Method
from grace.randomness import generator


@final
@dataclass(frozen=True)
class Exported:
    """An exported file's check."""

    check: OnnxCheck
    checked_on: Literal["held-out images", "exemplars", "images of noise"]


def export_checked(
    method: Method[Any],
    trainer: Trainer,
    held_out: HeldOut,
    preprocessing: Preprocessing,
    class_names: list[str],
    masked: list[int],
    path: Path,
    *,
    version: int,
) -> Exported:
    """Write the primary predictor; the file appears under its name once it has passed its check.

    Args:
        method: has learnt something.
        trainer: computes what the file must give, in full float32.
        held_out: images to check on; without any it is exemplars, without those noise.
        preprocessing: input shape and constants.
        class_names: of all classes.
        masked: indices of classes that were forgotten.
        path: file to write; one that is there is replaced.
        version: of the learner.

    Raises:
        ValueError: if it cannot be exported, or the file predicts something else.
    """
    classifier = next(iter(method.classifiers().values()))
    images, kind = _images(method, held_out, preprocessing.shape)
    data = LabelledImages(TensorImages(images), torch.zeros(len(images), dtype=torch.int64))
    # A GPU's convolutions round to TF32 unless they are told not to.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        logits = scores(trainer, {"": classifier}, data)[""]
    beside = path.with_name(f".{path.name}.unchecked")
    beside.unlink(missing_ok=True)
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
    """Choose images (N, C, H, W) evenly among those that a learner holds."""
    kind: Literal["held-out images", "exemplars"] = "held-out images"
    data = held_out.data()
    if data is None:
        data, kind = method.memory.data(), "exemplars"
    if len(data.labels) == 0:
        noise = torch.randint(0, 256, (32, *shape), generator=generator(0, "export"))
        return noise.to(torch.uint8), "images of noise"
    places = torch.arange(0, len(data.labels), -(-len(data.labels) // most))
    return data.images.gather(places).cpu(), kind
