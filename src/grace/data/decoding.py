"""Image files → pixels: every mode, orientation and size that cameras and people produce."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from grace.text.refusals import GraceError, Setting

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""The decoders that files of any name may reach."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def open_image(path: Path, channels: Literal[1, 3]) -> Image.Image:
    """Read an image file upright, as 8-bit grey or RGB.

    The camera's orientation is applied; 16-bit grey is scaled to 8 bits; transparent parts are
    laid on white, as browsers show them; of an animation the first frame is taken.

    Args:
        path: JPEG, PNG, WebP, BMP, GIF or TIFF, whatever its name says. PIL knows more formats,
            some of which start other programs.
        channels: 1 for grey (ITU-R 601 luma), 3 for RGB.

    Raises:
        ValueError: if the file is missing, empty, truncated, damaged, or larger than PIL's limit
            against decompression bombs; the file is named.
    """
    with _naming(path), Image.open(path, formats=FORMATS) as image:
        _check_area(image)
        image.load()
        return _flattened(ImageOps.exif_transpose(image), channels)


def upright_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image as it is seen, from its header alone.

    Raises:
        ValueError: as ``open_image``, as far as the header shows it.
    """
    with _naming(path), Image.open(path, formats=FORMATS) as image:
        _check_area(image)
        # Orientations 5 to 8 lie on their side.
        is_turned = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
        return (image.height, image.width) if is_turned else (image.width, image.height)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn whatever PIL raises for a file into one line that names it."""
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise GraceError(
            f"image '{path}' has more than {Image.MAX_IMAGE_PIXELS} pixels", "make it smaller"
        ) from None
    except Exception as error:  # Decoders of damaged files raise whatever they run into.
        is_empty = path.is_file() and path.stat().st_size == 0
        reason = "the file is empty" if is_empty else str(error).partition("\n")[0]
        raise GraceError(
            f"cannot read image '{path}' ({reason})",
            "replace or remove it",
            setting=Setting("data.skip_unreadable", "true"),
        ) from None


def _check_area(image: Image.Image) -> None:
    # PIL itself only warns up to twice its limit.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError


def read_pixels(
    path: Path, channels: Literal[1, 3], image_size: int | None, shorter: int | None = None
) -> Pixels:
    """Read an image file as pixels, cut to a centred square when a size is given.

    The shorter side is resized to ``shorter`` (bilinear with antialiasing, as torchvision's
    ``Resize``), then the centre of side ``image_size`` is taken (``CenterCrop``).

    Args:
        path: image file.
        channels: 1 or 3.
        image_size: side of the square in pixels; none keeps the image as it is.
        shorter: length of the shorter side before the crop, at least ``image_size``; none means
            ``image_size``.

    Returns:
        (H, W, channels) uint8.

    Raises:
        ValueError: as ``open_image``.
    """
    image = open_image(path, channels)
    if image_size is not None:
        with _naming(path):
            image = centre_square(image, image_size, shorter or image_size)
    return np.array(image, dtype=np.uint8).reshape(image.height, image.width, channels)


def centre_square(image: Image.Image, size: int, shorter: int) -> Image.Image:
    """Resize the shorter side to ``shorter`` pixels and cut the centred square of side ``size``.

    Raises:
        ValueError: if the resized image would be as large as a decompression bomb.
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


@final
@dataclass(frozen=True)
class Decoded:
    """Images read from files: pixels (N, C, H, W) uint8, which files they are, and what failed."""

    pixels: Tensor
    kept: Sequence[int]
    """Positions of the images in the list of files."""
    problems: Sequence[str]
    """One line per file that could not be read."""


def read_all(
    paths: Sequence[Path],
    channels: Literal[1, 3],
    image_size: int | None,
    skip_unreadable: bool = False,
    num_threads: int = 4,
) -> Decoded:
    """Read image files into one tensor.

    Args:
        paths: at least one file.
        channels: 1 or 3.
        image_size: side of the centred square in pixels; none demands that all have one size.
        skip_unreadable: leave unreadable files out instead of refusing.
        num_threads: files decoded at once.

    Raises:
        ValueError: for an unreadable file, if none is readable, or for an image of another size
            than the first; the file is named.
    """

    def read(path: Path) -> Pixels | GraceError:
        try:
            return read_pixels(path, channels, image_size)
        except GraceError as error:
            return error

    pixels: Tensor | None = None
    kept: list[int] = []
    problems: list[str] = []
    with ThreadPoolExecutor(num_threads) as pool:
        for position, image in enumerate(pool.map(read, paths)):
            if isinstance(image, GraceError):
                if not skip_unreadable:
                    pool.shutdown(cancel_futures=True)
                    raise image
                problems.append(str(image))
                continue
            if pixels is None:
                pixels = torch.empty((len(paths), *image.shape), dtype=torch.uint8)
                first = path_and_size(paths[position], image)
            if image.shape != pixels.shape[1:]:
                pool.shutdown(cancel_futures=True)
                raise other_size(path_and_size(paths[position], image), first)
            pixels[len(kept)] = torch.from_numpy(image)
            kept.append(position)
    if pixels is None:
        raise GraceError(f"none of {len(paths)} images can be read; the first: {problems[0]}")
    return Decoded(pixels[: len(kept)].permute(0, 3, 1, 2).contiguous(), kept, problems)


def path_and_size(path: Path, image: Pixels) -> tuple[Path, int, int]:
    """Return a file with the width and height of its image."""
    return path, image.shape[1], image.shape[0]


def other_size(found: tuple[Path, int, int], first: tuple[Path, int, int]) -> GraceError:
    """Make the error for an image whose size differs from the first one's."""
    return GraceError(
        f"image '{found[0]}' has {found[1]}×{found[2]} pixels, but '{first[0]}' has "
        f"{first[1]}×{first[2]}",
        setting=Setting("data.image_size"),
    )


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
