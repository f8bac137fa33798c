"""Images that stay in their files, and are decoded when they are needed.

Shapes: N images, B of them in a batch, C channels, H×W pixels.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from grace.data.decoders import as_array
from grace.data.decoding import Reading, decode, letterboxed, naming
from grace.data.image_changes import crop_boxes
from grace.data.images import Images


@final
@dataclass(frozen=True, eq=False)
class FileImages(Images):
    """Image files that threads decode on demand; pixels are not kept."""

    has_files: ClassVar[bool] = True
    paths: Sequence[Path]
    reading: Reading
    """Its size is the side of the squares of ``gather``, and ``shorter`` the length of the shorter
    side before the centre crop; random crops of letterboxed images are of the whole square."""

    @override
    def __len__(self) -> int:
        return len(self.paths)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        assert self.reading.size is not None
        return self.reading.channels, self.reading.size, self.reading.size

    @override
    def gather(self, indices: Tensor) -> Tensor:
        return self._decode(lambda path, _: decode(path, self.reading)[0], indices)

    @override
    def gather_crops(self, indices: Tensor, draws: Tensor) -> Tensor:
        assert len(draws) == len(indices)
        draws, whole = draws.cpu(), replace(self.reading, size=None)
        side = self.shape[1]

        def crop(path: Path, place: int) -> Image.Image:
            image, _ = decode(path, whole)
            if self.reading.fit == "letterbox":
                # A crop of 8 % of the area is then still enlarged little.
                image = letterboxed(image, min(max(image.size), 4 * side))
            box = crop_boxes(draws[place : place + 1], image.height, image.width)
            top, left, height, width = (int(value) for value in box[0])
            # Crop first: resize(box=…) would mix in pixels from outside the box.
            piece = image.crop((left, top, left + width, top + height))
            return piece.resize((side, side), Image.Resampling.BILINEAR)

        return self._decode(crop, indices)

    @override
    def subset(self, indices: Tensor) -> "FileImages":
        return replace(self, paths=[self.paths[index] for index in indices.tolist()])

    @override
    def digest(self) -> bytes:
        """Return the SHA-256 of shape and file contents; nothing is decoded."""
        key = (len(self), self.shape, self.reading.shorter, self.reading.fit)
        digest = hashlib.sha256(repr(key).encode())
        for path in self.paths:
            digest.update(file_digest(path))
        return digest.digest()

    def _decode(self, read: Callable[[Path, int], Image.Image], indices: Tensor) -> Tensor:
        """Return a batch (B, C, H, W) of ``read(path, position in the batch)``."""
        paths = [self.paths[index] for index in indices.tolist()]
        batch = torch.empty((len(paths), *self.shape), dtype=torch.uint8)

        def fill(place: int) -> None:
            with naming(paths[place]):
                image = read(paths[place], place)
            levels = torch.from_numpy(as_array(image, self.reading.channels))
            batch[place] = levels.permute(2, 0, 1)

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(len(paths))))
        return batch


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
