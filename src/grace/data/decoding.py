"""Decode image files of every pixel format, orientation and size."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from grace.text.refusals import GraceError, Setting

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""The formats that may be decoded, whatever a file's name is."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@final
@dataclass(frozen=True)
class Kind:
    """Properties of an image file beside its pixels."""

    mode: str = "RGB"
    """PIL's name of the file's kind of pixels: "RGB", "L", "P", "CMYK", "I;16", …"""
    is_rotated: bool = False
    """The file holds a camera orientation that must be applied."""
    is_animated: bool = False
    """The file has several frames; the first is used."""

    @property
    def is_grey(self) -> bool:
        """The file stores grey levels only."""
        return self.mode in ("1", "L", "LA", "La") or self.mode.startswith("I")


def open_image(path: Path, channels: Literal[1, 3]) -> tuple[Image.Image, Kind]:
    """Read an image file upright, as 8-bit grey or RGB; return it with the file's properties.

    The camera's orientation is applied; 16-bit grey is scaled to 8 bits; transparent parts are
    laid on white, as browsers show them; of an animation the first frame is taken.

    Args:
        path: JPEG, PNG, WebP, BMP, GIF or TIFF, whatever its name says. PIL knows more formats,
            some of which start other programs.
        channels: 1 for grey (ITU-R 601 luma), 3 for RGB.

    Raises:
        GraceError: if the file is missing, empty, truncated, damaged, or larger than PIL's limit
            against decompression bombs; it names the file.
    """
    with naming(path), Image.open(path, formats=FORMATS) as image:
        _check_area(image)
        # A camera's MPO holds a second view or a preview, not the next moment.
        num_frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        kind = Kind(image.mode, orientation in range(2, 9), num_frames > 1)
        image.load()
        return _flattened(ImageOps.exif_transpose(image), channels), kind


def upright_size(path: Path) -> tuple[int, int]:
    """Return width and height of an upright image, from the file's header alone.

    Raises:
        GraceError: as ``open_image``, as far as the header shows it.
    """
    with naming(path), Image.open(path, formats=FORMATS) as image:
        _check_area(image)
        # Orientations 5 to 8 lie on their side.
        is_turned = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
        return (image.height, image.width) if is_turned else (image.width, image.height)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any error of a decoder into one ``GraceError`` that names the file."""
    try:
        yield
    except Exception as error:  # Damaged bytes can make decoders raise anything.
        raise GraceError(
            _reason(path, error),
            "replace or remove it",
            setting=Setting("data.skip_unreadable", "true"),
            where=f"cannot read image '{path}'",
        ) from None


def _reason(path: Path, error: Exception) -> str:
    """Return in a few words why a file cannot be read."""
    if isinstance(error, GraceError):
        return error.what
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "it has too many pixels"
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return "it is a link to nothing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if path.stat().st_size == 0:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "its content is not an image"
    return "it is damaged, cut off or of a kind that is not supported"


def _check_area(image: Image.Image) -> None:
    # PIL itself only warns up to twice its limit.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise GraceError(f"{image.width}×{image.height} pixels are too many")


def read_pixels(
    path: Path, channels: Literal[1, 3], image_size: int | None, shorter: int | None = None
) -> Pixels:
    """Read an image file as pixels, cut to a centred square when a size is given.

    The shorter side is resized to ``shorter`` (bilinear with antialiasing, as torchvision's
    ``Resize``), then the centre of side ``image_size`` is taken (``CenterCrop``).

    Args:
        path: image file.
        channels: 1 or 3.
        image_size: side of the square in pixels; ``None`` keeps the image as it is.
        shorter: length of the shorter side before the crop, at least ``image_size``; ``None``
            means ``image_size``.

    Returns:
        (H, W, channels) uint8.

    Raises:
        GraceError: as ``open_image``.
    """
    image, _ = open_image(path, channels)
    if image_size is not None:
        with naming(path):
            image = centre_square(image, image_size, shorter or image_size)
    return np.array(image, dtype=np.uint8).reshape(image.height, image.width, channels)


def centre_square(image: Image.Image, size: int, shorter: int) -> Image.Image:
    """Resize the shorter side to ``shorter`` pixels and cut the centred square of side ``size``.

    Args:
        image: image of any size.
        size: side of the square in pixels.
        shorter: length of the shorter side before the cut, at least ``size``.

    Raises:
        GraceError: if the resized image would exceed PIL's limit for decompression bombs.
    """
    width, height = image.size
    if min(width, height) != shorter:
        longer = max(shorter, int(shorter * max(width, height) / min(width, height)))
        if longer * shorter > (Image.MAX_IMAGE_PIXELS or sys.maxsize):
            raise GraceError(f"{width}×{height} pixels are too long and thin to be resized")
        width, height = (shorter, longer) if width <= height else (longer, shorter)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def _flattened(image: Image.Image, channels: Literal[1, 3]) -> Image.Image:
    """Convert any mode to 8-bit grey or RGB."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.float64).clip(0, 65535) / 257
        image = Image.fromarray(levels.round().astype(np.uint8))
    elif image.mode == "F":
        raise GraceError("its pixels are floating-point numbers, which have no known range")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, layer)
    return image.convert("L" if channels == 1 else "RGB")
