"""Read image files as a learner takes them. Torch-free."""

from pathlib import Path
from typing import Literal

from grace.base.errors import GraceError
from grace.data.decoders import Pixels, read_pixels
from grace.settings.experiment import DataSettings


def read_file(path: Path, shape: tuple[int, int, int], settings: DataSettings) -> Pixels:
    """Read an image file in a learner's shape, as pixels (H, W, C).

    Args:
        path: the file.
        shape: the learner's (C, H, W).
        settings: how it becomes a square, and how many pixels it may have.

    Raises:
        GraceError: if it cannot be read, or has another size and the learner's images are no
            squares.
    """
    channels, side = channels_and_side(shape)
    pixels = read_pixels(path, channels, side, max_pixels=settings.max_pixels, fit=settings.fit)
    return of_size(pixels, shape, f"image '{path}'")


def channels_and_side(shape: tuple[int, int, int]) -> tuple[Literal[1, 3], int | None]:
    """Return the colours of a learner's images, and their side; ``None``: they are no squares."""
    channels, height, width = shape
    return 1 if channels == 1 else 3, height if height == width else None


def of_size(pixels: Pixels, shape: tuple[int, int, int], what: str) -> Pixels:
    """Return pixels (H, W, C); refuse those of another size than a learner's.

    Args:
        pixels: (H, W, C).
        shape: the learner's (C, H, W).
        what: name of the image in messages.

    Raises:
        GraceError: if the size differs.
    """
    if pixels.shape[:2] != shape[1:]:
        raise GraceError(
            f"{what} has {pixels.shape[1]}×{pixels.shape[0]} pixels, this learner takes "
            f"{shape[2]}×{shape[1]}",
            "resize it",
        )
    return pixels
