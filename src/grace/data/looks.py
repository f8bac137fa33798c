"""Read the properties of image files: size, content key and kind, or why one is unreadable.

Shapes: C channels, H×W pixels.
"""

import hashlib
import warnings
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, final

import numpy as np

from grace.base.errors import GraceError
from grace.data.decoding import MAX_PIXELS, Kind, Pixels, as_array, decoded
from grace.data.squares import squared
from grace.settings.experiment import Fit

Found = TypeVar("Found")


@final
@dataclass(frozen=True, kw_only=True)
class Look:
    """The properties of a readable image file."""

    size: tuple[int, int]
    """Width and height in pixels after the camera's orientation is applied."""
    key: Hashable
    """Equal for equal images: the key of ``selection.pixel_keys`` for a decoded image, with the
    original size if the image is not resized."""
    kind: Kind | None = None
    """``None``: the image was not opened."""


def look_at(
    path: Path,
    *,
    channels: Literal[1, 3],
    image_size: int | None,
    max_pixels: int = MAX_PIXELS,
    fit: Fit = "crop",
) -> tuple[Look, Pixels] | GraceError:
    """Decode an image file.

    Args:
        path: image file.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the square to make; ``None`` keeps the image's size.
        max_pixels: an image with more pixels is refused.
        fit: how it becomes a square.

    Returns:
        Its properties, and its pixels, uint8 (C, H, W); or the error if it cannot be read.
    """
    try:
        with decoded(path, channels, max_pixels, image_size) as (image, kind):
            size = image.size
            if image_size is not None:
                image = squared(image, image_size, image_size, fit)
            pixels = np.ascontiguousarray(as_array(image, channels).transpose(2, 0, 1))
    except GraceError as error:
        return error
    key = hashlib.sha256(pixels.data).digest()
    return Look(size=size, key=key if image_size else (key, size), kind=kind), pixels


@contextmanager
def decoding_threads(num_threads: int = 4) -> Iterator[ThreadPoolExecutor]:
    """Start threads for decoding image files; they end with the context.

    Args:
        num_threads: files read at once. Higher: faster, and more memory for decoders.
    """
    # Decoders warn about harmless defects. Warning filters belong to the process: set them once.
    with warnings.catch_warnings(), ThreadPoolExecutor(num_threads) as pool:
        warnings.simplefilter("ignore")
        yield pool


def num_ahead(image_size: int | None) -> int:
    """Return how many images may wait, decoded, until the first of them is taken."""
    # Images that are kept whole would take much memory.
    return 8 if image_size is None else 1024


def in_order(
    pool: Executor, read: Callable[[Path], Found], paths: Sequence[Path], most: int
) -> Iterator[Found]:
    """Read files in threads; yield their results in the order of the files.

    Args:
        pool: the threads.
        read: called with each path.
        paths: files.
        most: results that may wait to be taken. Higher: a slow file delays others less, and more
            results are in memory.
    """
    coming: deque[Future[Found]] = deque()
    for path in paths:
        if len(coming) >= most:
            yield coming.popleft().result()
        coming.append(pool.submit(read, path))
    while coming:
        yield coming.popleft().result()


def file_keys(paths: Sequence[Path]) -> list[Hashable]:
    """Return a key for each file, equal for equal content; read as little as possible.

    Keys of different calls cannot be compared. Files are compared by length, then by their last
    4 KiB, and then by the SHA-256 of the whole file.
    """
    keys: list[Hashable] = [path.stat().st_size for path in paths]
    for content in (_ending, _digest):
        counts = Counter(keys)
        keys = [
            (key, content(path)) if counts[key] > 1 else key
            for key, path in zip(keys, paths, strict=True)
        ]
    return keys


def _ending(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 4096, 0))
        return file.read()


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
