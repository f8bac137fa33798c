"""Read the images of a folder: decode or stream them, judge them, leave out unusable ones.

Shapes: N images, B of them in a batch, C channels, H×W pixels.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from grace.base.errors import GraceError
from grace.base.machine import memory_bytes
from grace.base.words import in_bytes, printable
from grace.data.decoders import Look, as_array, look_at_all
from grace.data.decoding import MAX_PIXELS, decode, letterboxed, naming, upright_size
from grace.data.findings import Finding, Rules, judge_images, refuse_first
from grace.data.folder_tree import ImageFile
from grace.data.image_changes import crop_boxes
from grace.data.images import CroppableImages, Images, TensorImages
from grace.settings.experiment import Fit

Looks = Sequence[Look | GraceError]


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """The used training or test images of a folder, and their files in the same order."""

    images: Images
    files: Sequence[ImageFile]

    @property
    def class_names(self) -> list[str]:
        """Class name of each image."""
        return [file.class_name for file in self.files]

    @property
    def paths(self) -> list[Path]:
        """File of each image."""
        return [file.path for file in self.files]


def read_parts(
    root: Path,
    parts: Sequence[Sequence[ImageFile]],
    channels: Literal[1, 3],
    rules: Rules,
    *,
    streams: bool = False,
    shorter: int | None = None,
) -> tuple[list[Part], Sequence[Finding]]:
    """Read images and judge them.

    Args:
        root: folder of the images.
        parts: files of each part; there may be no test part.
        channels: 1 for grey, 3 for colour.
        rules: decides what is refused and what is left out.
        streams: leave images in their files and decode them when they are needed. Duplicates are
            then equal files, and unreadable images are searched only if they are to be left out.
        shorter: for streamed images, the length in pixels to which the shorter side is resized
            before the centre is cut; ``None``: the image size.

    Returns:
        The used images of each part, and the findings that are not errors.

    Raises:
        GraceError: the first error found.
    """
    paths = [[file.path for file in part] for part in parts]
    read: list[tuple[Images, Looks]]
    if streams:
        read = list(_streamed(paths, channels, rules, shorter))
    else:
        read = [decode_all(own, channels, rules) for own in paths]
    files = [file for part in parts for file in part]
    judged = judge_images(root, files, [look for _, looks in read for look in looks], rules)
    refuse_first(judged.findings, root)
    used: list[Part] = []
    start = 0
    for part, (images, looks) in zip(parts, read, strict=True):
        readable = [place for place, look in enumerate(looks) if isinstance(look, Look)]
        rows = [row for row, at in enumerate(readable) if start + at not in judged.left_out]
        if len(rows) < len(readable):
            images = images.subset(torch.tensor(rows, dtype=torch.int64))
        used.append(Part(images=images, files=[part[readable[row]] for row in rows]))
        start += len(part)
    return used, judged.findings


def decode_all(
    paths: Sequence[Path], channels: Literal[1, 3], rules: Rules
) -> tuple[TensorImages, Looks]:
    """Decode image files into memory.

    Args:
        paths: N files.
        channels: 1 for grey, 3 for colour.
        rules: give the size; without one, images keep the first one's, and the pixels of others
            are left out.

    Returns:
        The images that were read, in order; and for each file its properties, or the error if it
        cannot be read.

    Raises:
        GraceError: if the machine has no memory for them.
    """
    looks: list[Look | GraceError] = []
    pixels, shape = bytearray(), (channels, 1, 1)
    memory = memory_bytes()
    found = look_at_all(
        paths,
        channels=channels,
        image_size=rules.image_size,
        max_pixels=rules.max_pixels,
        fit=rules.fit,
    )
    for path, one in zip(paths, found, strict=True):
        if isinstance(one, GraceError):
            looks.append(one)
            continue
        look, image = one
        looks.append(look)
        shape = shape if pixels else image.shape
        if image.shape == shape:
            pixels += image.data
            if memory is not None and len(pixels) > memory // 2:
                raise GraceError(
                    f"images of {shape[2]}×{shape[1]} pixels, as '{printable(str(path))}' has, "
                    f"take {in_bytes(len(pixels))} of memory and more, too much for this machine",
                    "learn smaller or fewer images, or set data.image_size",
                )
    if not pixels:
        return TensorImages(torch.empty((0, *shape), dtype=torch.uint8)), looks
    return TensorImages(torch.frombuffer(pixels, dtype=torch.uint8).view(-1, *shape)), looks


def _streamed(
    parts: Sequence[Sequence[Path]], channels: Literal[1, 3], rules: Rules, shorter: int | None
) -> Iterator[tuple["FileImages", Looks]]:
    """Yield images that stay in their files; read only as much as the rules need."""
    side = rules.image_size

    def header(path: Path) -> tuple[int, int] | GraceError:
        try:
            return (side, side) if side is not None else upright_size(path, rules.max_pixels)
        except GraceError as error:
            return error

    paths = [path for part in parts for path in part]
    sizes: list[tuple[int, int] | GraceError]
    if rules.skip_unreadable:
        found = look_at_all(
            paths, channels=channels, image_size=side, max_pixels=rules.max_pixels, fit=rules.fit
        )
        sizes = [
            own if isinstance(own, GraceError) else (side, side) if side else own[0].size
            for own in found
        ]
    else:
        with ThreadPoolExecutor(4) as pool:
            sizes = list(pool.map(header, paths))
    both = list(zip(paths, sizes, strict=True))
    # One call for all parts, as keys of different calls cannot be compared.
    keys = iter(file_keys([path for path, own in both if not isinstance(own, GraceError)]))
    looks = [
        own if isinstance(own, GraceError) else Look(size=own, key=next(keys)) for own in sizes
    ]
    width, height = next((look.size for look in looks if isinstance(look, Look)), (1, 1))
    start = 0
    for part in parts:
        own = looks[start : start + len(part)]
        readable = [path for path, look in zip(part, own, strict=True) if isinstance(look, Look)]
        size, most = (height, width), rules.max_pixels
        yield FileImages(readable, channels, size, shorter, max_pixels=most, fit=rules.fit), own
        start += len(part)


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


@final
@dataclass(frozen=True, eq=False)
class FileImages(CroppableImages):
    """Image files that threads decode on demand; pixels are not kept."""

    paths: Sequence[Path]
    channels: Literal[1, 3]
    size: tuple[int, int]
    """(H, W) in pixels of the images of ``gather``; square if ``shorter`` is given."""
    shorter: int | None
    """Length in pixels to which the shorter side is resized before the centre crop; ``None``: all
    images must have the given size."""
    max_pixels: int = MAX_PIXELS
    """An image with more pixels is refused."""
    fit: Fit = "crop"
    """How an image becomes a square. Random crops are then of the whole square."""

    def __post_init__(self) -> None:
        assert self.shorter is None or self.size[0] == self.size[1] <= self.shorter

    @override
    def __len__(self) -> int:
        return len(self.paths)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self.channels, *self.size

    @override
    def gather(self, indices: Tensor) -> Tensor:
        side = None if self.shorter is None else self.size[0]

        def read(path: Path, place: int) -> Image.Image:
            return decode(
                path,
                self.channels,
                size=side,
                shorter=self.shorter,
                fit=self.fit,
                max_pixels=self.max_pixels,
            )[0]

        return self._decode(read, indices)

    @override
    def gather_crops(self, indices: Tensor, draws: Tensor) -> Tensor:
        assert len(draws) == len(indices)
        draws = draws.cpu()

        def crop(path: Path, place: int) -> Image.Image:
            image, _ = decode(path, self.channels, max_pixels=self.max_pixels)
            if self.fit == "letterbox":
                # A crop of 8 % of the area is then still enlarged little.
                image = letterboxed(image, min(max(image.size), 4 * self.size[0]))
            box = crop_boxes(draws[place : place + 1], image.height, image.width)
            top, left, height, width = (int(value) for value in box[0])
            # Crop first: resize(box=…) would mix in pixels from outside the box.
            piece = image.crop((left, top, left + width, top + height))
            return piece.resize(self.size[::-1], Image.Resampling.BILINEAR)

        return self._decode(crop, indices)

    @override
    def subset(self, indices: Tensor) -> "FileImages":
        paths = [self.paths[index] for index in indices.tolist()]
        return replace(self, paths=paths)

    @override
    def to(self, device: torch.device) -> "FileImages":
        return self

    @property
    @override
    def num_bytes(self) -> int:
        return len(self) * self.channels * self.size[0] * self.size[1]

    @override
    def digest(self) -> bytes:
        """Return the SHA-256 of shape and file contents; nothing is decoded."""
        key = (len(self), self.shape, self.shorter, self.fit)
        digest = hashlib.sha256(repr(key).encode())
        for path in self.paths:
            digest.update(_digest(path))
        return digest.digest()

    def _decode(self, read: Callable[[Path, int], Image.Image], indices: Tensor) -> Tensor:
        """Return a batch (B, C, H, W) of ``read(path, position in the batch)``."""
        paths = [self.paths[index] for index in indices.tolist()]
        batch = torch.empty((len(paths), *self.size, self.channels), dtype=torch.uint8)

        def fill(place: int) -> None:
            with naming(paths[place]):
                image = read(paths[place], place)
            if image.size[::-1] != self.size:
                raise GraceError(
                    f"image '{paths[place]}' has {image.width}×{image.height} pixels, but "
                    f"'{self.paths[0]}' has {self.size[1]}×{self.size[0]}",
                    "set data.image_size",
                )
            batch[place] = torch.from_numpy(as_array(image, self.channels))

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(len(paths))))
        return batch.permute(0, 3, 1, 2).contiguous()
