"""Convert an exported ONNX file to half precision or to 8-bit integers, and see what that costs.

Half precision halves the file. Static quantisation stores the weights of convolutions and their
inputs as 8-bit integers, whose ranges are measured on images; everything else stays float32. Inputs
and outputs are float32 in both.

Shapes: N images, C channels, H×W pixels, K classes.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, final

import torch
from torch import Tensor

from grace.base.atomic import write_bytes
from grace.learner.intervals import LEVEL, sign_test

Precision = Literal["float32", "fp16", "int8"]
CALIBRATION_BATCH = 32


@final
@dataclass(frozen=True)
class Agreement:
    """How a file of lower precision compares with the float32 one on the same images.

    Args:
        same_class: share of images that get the same class, in [0, 1].
        accuracy: shares of right answers of the float32 file and of the other one; ``None``: the
            images have no labels.
        chance: p-value of the paired test that the other file is not worse; 1 without labels.
    """

    same_class: float
    accuracy: tuple[float, float] | None
    chance: float = 1.0

    @property
    def is_worse(self) -> bool:
        """True if the images show that the lower precision costs accuracy."""
        return self.chance <= LEVEL


def agreement(exact: Tensor, reduced: Tensor, labels: Tensor | None) -> Agreement:
    """Compare what two files say of the same images.

    Args:
        exact: (N, K) logits of the float32 file.
        reduced: (N, K) logits of the other one.
        labels: (N,) right classes; ``None``: they are not known.
    """
    found, expected = reduced.argmax(dim=1), exact.argmax(dim=1)
    same = float((found == expected).double().mean())
    if labels is None:
        return Agreement(same, None)
    before, after = expected == labels, found == labels
    accuracy = (float(before.double().mean()), float(after.double().mean()))
    lost, won = int((before & ~after).sum()), int((after & ~before).sum())
    return Agreement(same, accuracy, sign_test(lost, won))


def reduce_precision(path: Path, precision: Precision, images: Tensor) -> None:
    """Replace an exported file by one of lower precision; its metadata stay.

    Args:
        path: a file of ``export_onnx``.
        precision: "float32" changes nothing.
        images: (N, C, H, W) uint8, by which "int8" measures ranges; those of training or held-out
            images are right, others cost accuracy.
    """
    if precision == "float32":
        return
    import onnx

    model = onnx.load(path)
    metadata = {own.key: own.value for own in model.metadata_props}
    changed = _halved(model) if precision == "fp16" else _quantised(path, images)
    del changed.metadata_props[:]
    for key, value in {**metadata, "precision": precision}.items():
        changed.metadata_props.add(key=key, value=value)
    write_bytes(path, changed.SerializeToString())


def _halved(model: Any) -> Any:  # noqa: ANN401 - onnx.ModelProto
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def _quantised(path: Path, images: Tensor) -> Any:  # noqa: ANN401 - an onnx.ModelProto
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with TemporaryDirectory() as folder, _without_advice():
        out = Path(folder) / "int8.onnx"
        quantize_static(
            path,
            out,
            _Reader(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(out)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Hide warnings of onnxruntime, which advise to optimise what is optimised already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@final
class _Reader:
    """Gives images to the measurement of ranges, as onnxruntime asks for them."""

    def __init__(self, images: Tensor) -> None:
        self._batches: Iterator[Tensor] = iter(images.split(CALIBRATION_BATCH))

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch of inputs; ``None`` at the end."""
        batch = next(self._batches, None)
        return None if batch is None else {"images": (batch.float() / 255).numpy()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (batch := self.get_next()) is not None:
            yield batch


def reduced_logits(run: Any, images: Tensor) -> Tensor:  # noqa: ANN401 - of ``load_onnx``
    """Return the logits (N, K) of images (N, C, H, W) uint8, a few at a time."""
    return torch.cat([run(batch) for batch in images.split(64)])
