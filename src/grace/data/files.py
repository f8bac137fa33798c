"""Images that stay in files and are decoded when they are needed.

Shapes: B images in a batch, C channels, H×W pixels.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, final

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from grace.base.errors import GraceError, Setting
from grace.data.crops import crop_boxes
from grace.data.decoding import MAX_PIXELS, Pixels, as_array, decoded, read_pixels
from grace.data.images import CroppableImages
from grace.data.squares import letterboxed
from grace.settings.experiment import Fit


@final
class FileImages(CroppableImages):
    """Image files that threads decode on demand; pixels are not kept.

    Args:
        paths: N image files.
        channels: 1 or 3.
        size: (H, W) in pixels of the images of ``gather``; square if ``shorter`` is given.
        shorter: length in pixels to which the shorter side is resized before the centre crop;
            ``None``: all images must have the given size.
        num_threads: files decoded at once; ``None``: Python's default.
        max_pixels: an image with more pixels is refused.
        fit: how an image becomes a square. Random crops are then of the whole square.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        channels: Literal[1, 3],
        size: tuple[int, int],
        shorter: int | None,
        num_threads: int | None = None,
        max_pixels: int = MAX_PIXELS,
        fit: Fit = "crop",
    ) -> None:
        assert shorter is None or size[0] == size[1] <= shorter
        self.paths = tuple(paths)
        self._channels = channels
        self._size = size
        self._shorter = shorter
        self._num_threads = num_threads
        self._max_pixels = max_pixels
        self._fit: Fit = fit

    @override
    def __len__(self) -> int:
        return len(self.paths)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self._channels, *self._size

    @override
    def gather(self, indices: Tensor) -> Tensor:
        return self._decode(self._read, range(len(indices)), indices)

    @override
    def gather_crops(self, indices: Tensor, draws: Tensor) -> Tensor:
        assert len(draws) == len(indices)
        draws = draws.cpu()

        def crop(path: Path, place: int) -> Pixels:
            with decoded(path, self._channels, self._max_pixels, self._shorter) as (image, _):
                if self._fit == "letterbox":
                    # A crop of 8 % of the area is then still enlarged little.
                    image = letterboxed(image, min(max(image.size), 4 * self._size[0]))
                box = crop_boxes(draws[place : place + 1], image.height, image.width)
                top, left, height, width = (int(value) for value in box[0])
                # Crop first: resize(box=…) would mix in pixels from outside the box.
                piece = image.crop((left, top, left + width, top + height))
                piece = piece.resize(self._size[::-1], Image.Resampling.BILINEAR)
                return as_array(piece, self._channels)

        return self._decode(crop, range(len(indices)), indices)

    @override
    def subset(self, indices: Tensor) -> "FileImages":
        paths = [self.paths[index] for index in indices.tolist()]
        return FileImages(
            paths,
            self._channels,
            self._size,
            self._shorter,
            self._num_threads,
            self._max_pixels,
            self._fit,
        )

    @override
    def to(self, device: torch.device) -> "FileImages":
        return self

    @property
    @override
    def num_bytes(self) -> int:
        return len(self) * self._channels * self._size[0] * self._size[1]

    @override
    def digest(self) -> bytes:
        """Return the SHA-256 of shape and file contents; nothing is decoded."""
        key: tuple[object, ...] = (len(self), self.shape, self._shorter)
        # With a crop the digest is that of an earlier grace.
        key = key if self._fit == "crop" else (*key, self._fit)
        digest = hashlib.sha256(repr(key).encode())
        for path in self.paths:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.digest()

    def _read(self, path: Path, place: int) -> Pixels:
        if self._shorter is not None:
            return read_pixels(
                path, self._channels, self._size[0], self._shorter, self._max_pixels, self._fit
            )
        image = read_pixels(path, self._channels, None, None, self._max_pixels)
        if image.shape[:2] != self._size:
            raise GraceError(
                f"image '{path}' has {image.shape[1]}×{image.shape[0]} pixels, but "
                f"'{self.paths[0]}' has {self._size[1]}×{self._size[0]}",
                setting=Setting("data.image_size"),
            )
        return image

    def _decode(
        self, read: Callable[[Path, int], Pixels], places: Sequence[int], indices: Tensor
    ) -> Tensor:
        """Return a batch (B, C, H, W) of ``read(path, position in the batch)``."""
        paths = [self.paths[index] for index in indices.tolist()]
        batch = torch.empty((len(paths), *self._size, self._channels), dtype=torch.uint8)
        with ThreadPoolExecutor(self._num_threads) as pool:
            for place, image in enumerate(pool.map(read, paths, places)):
                batch[place] = torch.from_numpy(image)
        return batch.permute(0, 3, 1, 2).contiguous()
