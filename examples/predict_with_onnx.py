"""Name what pictures show, with an exported model: no torch, no grace.

Run it as ``python examples/predict_with_onnx.py model.onnx picture.png ...``. It needs numpy,
Pillow and onnxruntime; all it must know about the model stands in the model's own metadata.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime would report to its makers.
import onnxruntime

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""PIL knows more formats, some of which it hands to other programs."""


def centre_square(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to ``size`` pixels and cut the centred square, as in training."""
    width, height = image.size
    if min(width, height) != size:
        longer = max(size, int(size * max(width, height) / min(width, height)))
        width, height = (size, longer) if width <= height else (longer, size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def letterboxed(image: Image.Image, size: int) -> Image.Image:
    """Resize the longer side to ``size`` pixels and centre it on grey, as in training."""
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    square = Image.new(image.mode, (size, size), 128 if image.mode == "L" else (128, 128, 128))
    square.paste(image, ((size - width) // 2, (size - height) // 2))
    return square


def read(path: Path | BinaryIO, fit: str, channels: int, height: int, width: int) -> np.ndarray:
    """Read a picture upright, on white, as pixels (C, H, W) in [0, 1]."""
    name = path if isinstance(path, Path) else "what was sent"
    try:
        with Image.open(path, formats=FORMATS) as file:
            image: Image.Image = ImageOps.exif_transpose(file)
    except Exception as error:  # Damaged bytes can make decoders raise anything.
        raise SystemExit(f"{name}: {getattr(error, 'strerror', None) or 'no picture'}") from error
    if image.mode[0] in "IF":
        raise SystemExit(f"{name}: pixels of more than 8 bits; convert it to 8 bits")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    image = image.convert("L" if channels == 1 else "RGB")
    if height == width:
        image = (letterboxed if fit == "letterbox" else centre_square)(image, height)
    elif image.size != (width, height):
        raise SystemExit(f"{name}: the model takes pictures of {width}×{height} pixels")
    pixels = np.asarray(image, dtype=np.float32).reshape(height, width, channels)
    return pixels.transpose(2, 0, 1) / 255


class Model:
    """An exported model: all it must know stands in its own metadata."""

    def __init__(self, path: Path) -> None:
        try:
            self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a type of its own for every reason.
            reason = "does not exist" if not path.exists() else "is no model that can be read"
            raise SystemExit(f"{path} {reason}") from error
        about = json.loads(self.session.get_modelmeta().custom_metadata_map["grace"])
        self.names, self.size, self.fit = about["class_names"], about["input_size"], about["fit"]
        self.unknown_below = about["unknown_below"]

    def answer(self, picture: Path | BinaryIO, false_alarms: int = 5) -> dict[str, object]:
        """Say what a picture shows, and if it is unknown at so many percent of false alarms.

        ``unknown`` is missing if the learner had too few held-out images to tell.
        """
        images = {"images": read(picture, self.fit, *self.size)[None]}
        (shares,), (known,) = self.session.run(["probabilities", "familiarity"], images)
        best, limit = int(shares.argmax()), self.unknown_below.get(f"{false_alarms / 100:g}")
        found = {
            "class": self.names[best],
            "probability": float(shares[best]),
            "familiarity": float(known),
        }
        return found | ({} if limit is None else {"unknown": bool(known < limit)})


def main() -> None:
    """Print the name and the probability of each picture's class."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("pictures", type=Path, nargs="+")
    arguments = parser.parse_args()
    model, failed = Model(arguments.model), 0
    for path in arguments.pictures:
        try:
            answer = model.answer(path)
        except SystemExit as error:
            print(error, file=sys.stderr)
            failed = 1
            continue
        print(f"{path}: {answer['class']} {answer['probability']:.1%}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
