"""Decode image files of every pixel format, orientation and size, within a budget of memory."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, final

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from grace.base.errors import GraceError, Setting
from grace.data.decoding_budget import BUDGET
from grace.data.image_file import (
    open_regular,
    refuse_exif,
    refuse_frames_of_films,
    refuse_many_scans,
    refuse_oversized_parts,
)
from grace.data.squares import resized, squared
from grace.data.webp import drop_file, load_webp
from grace.settings.experiment import DataSettings, Fit

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""The formats that may be decoded, whatever a file's name is."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns an image upright, by the camera's orientation."""

_LARGE = 2**20
"""Pixels of an image that is large enough to be converted in strips."""

_HEAVY = 2**26
"""Pixels of a progressive JPEG of four colours that may be decoded in full before a resize."""

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


MAX_PIXELS = DataSettings.model_fields["max_pixels"].default
"""Largest number of pixels of an image, unless ``data.max_pixels`` says otherwise."""


@contextmanager
def decoded(
    path: Path,
    channels: Literal[1, 3],
    max_pixels: int = MAX_PIXELS,
    shorter: int | None = None,
) -> Iterator[tuple[Image.Image, Kind]]:
    """Read an image file upright, as 8-bit grey or RGB; yield it with the file's properties.

    The camera's orientation is applied; 16-bit grey is scaled to 8 bits; transparent parts are
    laid on white, as browsers show them; of an animation the first frame is taken. While the
    context lasts, the image's memory is part of ``BUDGET``; then the image is closed. Errors in the
    context name the file.

    Args:
        path: JPEG, PNG, WebP, BMP, GIF or TIFF, whatever its name says. PIL knows more formats,
            some of which start other programs.
        channels: 1 for grey (ITU-R 601 luma), 3 for RGB.
        max_pixels: an image with more pixels is refused before it is decoded.
        shorter: length of the shorter side after the resize in the context; ``None``: all pixels
            are kept.

    Raises:
        GraceError: if the file is missing, no regular file, empty, truncated, damaged, or has too
            many pixels; it names the file.
    """
    with (
        naming(path),
        open_regular(path) as file,
        opened(file, FORMATS, max_pixels) as image,
        BUDGET.taken(_cost(image, shorter)),
    ):
        # A camera's MPO holds a second view or a preview, not the next moment.
        is_animated = image.format != "MPO" and getattr(image, "is_animated", False)
        kind = Kind(image.mode, _orientation(image) in _TURNS, is_animated)
        pixels = _flattened(_turned(_loaded(image, shorter)), channels)
        try:
            yield pixels, kind
        finally:
            pixels.close()  # Others wait for this memory.


def upright_size(path: Path, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return width and height of an upright image, from the file's header where it shows them.

    Args:
        path: the file.
        max_pixels: an image with more pixels is refused.

    Raises:
        GraceError: as ``decoded``, as far as the header shows it.
    """
    with (
        naming(path),
        open_regular(path) as file,
        opened(file, FORMATS, max_pixels) as image,
        BUDGET.taken(_cost(image, 1)),
    ):
        # Orientations 5 to 8 lie on their side.
        is_turned = _orientation(image) >= 5
        return (image.height, image.width) if is_turned else (image.width, image.height)


@contextmanager
def opened(file: BinaryIO, formats: tuple[str, ...], max_pixels: int) -> Iterator[Any]:
    """Open an image file without decoding it; refuse what would cost too much to decode.

    Args:
        file: open at its start.
        formats: PIL's names of the formats that it may have.
        max_pixels: an image with more pixels is refused.
    """
    refuse_frames_of_films(file)
    refuse_oversized_parts(file)
    with Image.open(file, formats=formats) as image:
        num_pixels = image.width * image.height
        # A program may have lowered PIL's own limit.
        if num_pixels > min(max_pixels, _lowered_limit()):
            raise GraceError(
                f"{image.width}×{image.height} pixels are too many",
                f"make it smaller or set data.max_pixels={num_pixels}",
            )
        if image.format == "WEBP":
            drop_file(image)
        if "progressive" in image.info or _has_partial_scan(image):
            refuse_many_scans(file, num_pixels)
        yield image


def _lowered_limit() -> int:
    limit = Image.MAX_IMAGE_PIXELS
    return limit if limit is not None and limit < MAX_PIXELS else sys.maxsize


def _has_partial_scan(image: Any) -> bool:  # noqa: ANN401 - PIL.JpegImagePlugin is untyped
    """Return True if the first scan of a JPEG file lacks some of its colours: others follow."""
    if image.format not in ("JPEG", "MPO"):
        return False
    # The file stands behind the header of the scan, which has two bytes for each colour.
    num_colours = image.layers
    length = 6 + 2 * num_colours
    if image.fp.tell() < length:
        return True
    image.fp.seek(-length, os.SEEK_CUR)
    return bool(image.fp.read(length)[:3] != bytes([0, length, num_colours]))


def _orientation(image: Image.Image) -> int:
    """Return the camera's orientation, 1 to 8; 1 if there is none."""
    if image.format == "PNG":
        image.load()  # The EXIF block may follow the pixels.
    for name in ("exif", "Raw profile type exif"):
        block = image.info.get(name, b"")
        if isinstance(block, str):  # As hexadecimal digits, behind three lines.
            block = bytes.fromhex("".join(block.split("\n")[3:]))
        refuse_exif(block)
    found = image.getexif().get(ExifTags.Base.Orientation, 1)
    return found if found in range(1, 9) else 1


def _cost(image: Image.Image, shorter: int | None) -> int:
    """Return the bytes of memory that decoding and converting an image takes at most."""
    # PIL holds four bytes a pixel, twice while it converts. WebP and TIFF decode into buffers of
    # their own, progressive JPEG holds coefficients; an image that is kept whole is copied.
    is_light = image.format in ("PNG", "BMP", "GIF") or (
        image.format in ("JPEG", "MPO") and "progressive" not in image.info
    )
    num_pixels = image.width * image.height
    if shorter is None:
        return num_pixels * (13 if is_light else 16)
    width, height = resized(image.width, image.height, shorter)
    return num_pixels * (8 if is_light else 12) + 8 * width * height


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any error of a decoder into one ``GraceError`` that names the file."""
    try:
        yield
    except Exception as error:  # Damaged bytes can make decoders raise anything.
        given = error.remedy if isinstance(error, GraceError) else ""
        is_absent = isinstance(error, FileNotFoundError) and not path.is_symlink()
        raise GraceError(
            "it does not exist" if is_absent else _reason(path, error),
            given or ("check the spelling" if is_absent else "replace or remove it"),
            setting=Setting("data.skip_unreadable", "true"),
            where=f"cannot read image '{path}'",
        ) from None


def _reason(path: Path, error: Exception) -> str:
    """Return in a few words why a file cannot be read."""
    if isinstance(error, GraceError):
        return error.what
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "it has too many pixels"
    if isinstance(error, MemoryError):
        return "there is not enough memory for its pixels"
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return "it is a link to nothing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if path.stat().st_size == 0:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "its content is not an image"
    return "it is damaged, cut off or of a kind that is not supported"


def read_pixels(
    path: Path,
    channels: Literal[1, 3],
    image_size: int | None,
    shorter: int | None = None,
    max_pixels: int = MAX_PIXELS,
    fit: Fit = "crop",
) -> Pixels:
    """Read an image file as pixels, made a square when a size is given; see ``squared``.

    Args:
        path: image file.
        channels: 1 or 3.
        image_size: side of the square in pixels; ``None`` keeps the image as it is.
        shorter: length of the shorter side before the crop, at least ``image_size``; ``None``
            means ``image_size``.
        max_pixels: an image with more pixels is refused.
        fit: how it becomes a square.

    Returns:
        (H, W, channels) uint8.

    Raises:
        GraceError: as ``decoded``.
    """
    shorter = shorter or image_size
    with decoded(path, channels, max_pixels, shorter) as (image, _):
        if image_size is not None and shorter is not None:
            image = squared(image, image_size, shorter, fit)
        return as_array(image, channels)


def pixels_of(
    image: Image.Image,
    channels: Literal[1, 3],
    image_size: int | None = None,
    fit: Fit = "crop",
) -> Pixels:
    """Return the pixels of an image of a Python program as ``read_pixels`` does those of a file.

    Args:
        image: image of any mode.
        channels: 1 or 3.
        image_size: side of the square in pixels; ``None``: the image keeps its size.
        fit: how it becomes a square.

    Returns:
        (H, W, channels) uint8.
    """
    upright = _flattened(ImageOps.exif_transpose(image), channels)
    if image_size is not None:
        upright = squared(upright, image_size, image_size, fit)
    return as_array(upright, channels)


def as_array(image: Image.Image, channels: Literal[1, 3]) -> Pixels:
    """Return an image's pixels, (H, W, channels) uint8."""
    return np.array(image, dtype=np.uint8).reshape(image.height, image.width, channels)


def _loaded(image: Any, shorter: int | None) -> Image.Image:  # noqa: ANN401 - PIL's are untyped
    """Return an opened image with its pixels decoded.

    Args:
        image: the file's header.
        shorter: length of the shorter side after the resize that follows; ``None``: no resize.
    """
    if image.format == "WEBP":
        return load_webp(image)
    if shorter is not None and _is_heavy(image) and 2 * shorter <= min(image.size):
        image.draft(None, (image.width // 2, image.height // 2))
    image.load()
    return cast("Image.Image", image)


def _is_heavy(image: Any) -> bool:  # noqa: ANN401 - PIL.JpegImagePlugin is untyped
    """Return True for JPEG files that are decoded at half their size, as they take too much memory.

    The coefficients of four colours take eight bytes a pixel, and the pixels four more.
    """
    return (
        image.format in ("JPEG", "MPO")
        and image.layers > 3
        and "progressive" in image.info
        and image.width * image.height > _HEAVY
    )


def _turned(image: Image.Image) -> Image.Image:
    """Return an image upright; a turned one replaces it in memory."""
    # PIL itself turns TIFF images when it loads them.
    turn = _TURNS.get(_orientation(image))
    if turn is None:
        return image
    turned = image.transpose(turn)
    image.close()
    return turned


def _flattened(image: Image.Image, channels: Literal[1, 3]) -> Image.Image:
    """Convert any mode to 8-bit grey or RGB."""
    if image.mode == "F":
        raise GraceError("its pixels are floating-point numbers, which have no known range")
    mode = "L" if channels == 1 else "RGB"
    if image.mode == mode and not image.has_transparency_data:
        return image
    flat = _converted(image, mode)
    image.close()
    return flat


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Convert any mode to another, 8-bit grey or RGB; transparent parts are laid on white."""
    if not image.mode.startswith("I") and not image.has_transparency_data:
        return image.convert(mode)
    # What is between the kinds of pixels takes more memory than they do: take it in strips.
    num_rows = max(_LARGE // max(image.width, 1), 1)
    if num_rows >= image.height:
        return _flattened_strip(image, mode)
    whole = Image.new(mode, image.size)
    for top in range(0, image.height, num_rows):
        strip = image.crop((0, top, image.width, min(top + num_rows, image.height)))
        whole.paste(_flattened_strip(strip, mode), (0, top))
    return whole


def _flattened_strip(image: Image.Image, mode: str) -> Image.Image:
    """Convert 16-bit or transparent pixels to 8-bit grey or RGB."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int32).clip(0, 65535)
        # Rounded: no level lies in the middle between two.
        image = Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, layer)
    return image.convert(mode)
