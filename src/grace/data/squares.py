"""Make an image a square: by a crop of its centre, or with margins.

Shapes: sizes are (width, height), as PIL has them.
"""

import sys

from PIL import Image

from grace.base.errors import GraceError
from grace.settings.experiment import Fit

GREY = 128
"""Level of the margins of a letterboxed image, in all channels."""


def squared(image: Image.Image, size: int, shorter: int, fit: Fit) -> Image.Image:
    """Make an image a square: the only rule by which grace does so.

    Args:
        image: image of any size.
        size: side of the square in pixels.
        shorter: with ``crop``, length of the shorter side before the cut, at least ``size``.
        fit: ``crop`` or ``letterbox``.

    Raises:
        GraceError: if the resized image would exceed PIL's limit for decompression bombs.
    """
    return centre_square(image, size, shorter) if fit == "crop" else letterboxed(image, size)


def letterboxed(image: Image.Image, size: int) -> Image.Image:
    """Resize the longer side to ``size`` pixels (bilinear with antialiasing), on a grey square.

    The shorter side is resized in proportion, rounded, to one pixel at least; where its margins
    differ by a pixel, the smaller one is at the left or top.
    """
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    square = Image.new(image.mode, (size, size), GREY if image.mode == "L" else (GREY,) * 3)
    square.paste(image, ((size - width) // 2, (size - height) // 2))
    return square


def centre_square(image: Image.Image, size: int, shorter: int) -> Image.Image:
    """Resize the shorter side to ``shorter`` pixels and cut the centred square of side ``size``.

    Bilinear with antialiasing, as torchvision's ``Resize``, then its ``CenterCrop``.

    Args:
        image: image of any size.
        size: side of the square in pixels.
        shorter: length of the shorter side before the cut, at least ``size``.

    Raises:
        GraceError: if the resized image would exceed PIL's limit for decompression bombs.
    """
    width, height = resized(image.width, image.height, shorter)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def resized(width: int, height: int, shorter: int) -> tuple[int, int]:
    """Return width and height after the shorter side is resized.

    Args:
        width: before, in pixels.
        height: before, in pixels.
        shorter: the shorter side afterwards.

    Raises:
        GraceError: if the longer side would be too long.
    """
    if min(width, height) == shorter:
        return width, height
    longer = max(shorter, int(shorter * max(width, height) / min(width, height)))
    if longer * shorter > (Image.MAX_IMAGE_PIXELS or sys.maxsize):
        raise GraceError(f"{width}×{height} pixels are too long and thin to be resized")
    return (shorter, longer) if width <= height else (longer, shorter)
