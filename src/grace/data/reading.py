"""Read the images of a folder: decode or stream them, judge them, leave out unusable ones.

Shapes: N images, C channels, H×W pixels.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

import torch

from grace.base.errors import GraceError, Setting
from grace.base.machine import memory_bytes
from grace.base.words import in_bytes, printable
from grace.data.decoding import MAX_PIXELS, decoded, upright_size
from grace.data.files import FileImages
from grace.data.findings import Finding, Rules, judge_images, refuse_first
from grace.data.folder_tree import ImageFile
from grace.data.images import Images, TensorImages
from grace.data.looks import Look, decoding_threads, file_keys, in_order, look_at, num_ahead
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
    read: list[tuple[Images, Looks]]
    paths = [[file.path for file in part] for part in parts]
    if streams:
        read = list(_streamed(paths, channels, rules, shorter))
    else:
        side, most, fit = rules.image_size, rules.max_pixels, rules.fit
        decode = partial(decode_all, channels=channels, image_size=side, max_pixels=most, fit=fit)
        read = list(map(decode, paths))
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
    paths: Sequence[Path],
    channels: Literal[1, 3],
    image_size: int | None,
    max_pixels: int = MAX_PIXELS,
    fit: Fit = "crop",
) -> tuple[TensorImages, Looks]:
    """Decode image files into memory.

    Args:
        paths: N files.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the square to make; ``None``: keep the images of the
            first one's size, and leave out the pixels of others.
        max_pixels: an image with more pixels is unreadable.
        fit: how an image becomes a square.

    Returns:
        The images that were read, in order; and for each file its properties, or the error if it
        cannot be read.

    Raises:
        GraceError: if all images have one size, but the machine has no memory for them.
    """
    looks: list[Look | GraceError] = []
    pixels = torch.empty((0, channels, 1, 1), dtype=torch.uint8)
    count = 0
    read = partial(
        look_at, channels=channels, image_size=image_size, max_pixels=max_pixels, fit=fit
    )
    with decoding_threads() as pool:
        outcomes = in_order(pool, read, paths, num_ahead(image_size))
        for path, found in zip(paths, outcomes, strict=True):
            if isinstance(found, GraceError):
                looks.append(found)
                continue
            own, image = found
            looks.append(own)
            if len(pixels) == 0:
                num_kept = _num_kept(paths, path, own.size, image.nbytes, max_pixels)
                pixels = torch.empty((num_kept, *image.shape), dtype=torch.uint8)
            if image.shape == pixels.shape[1:] and count < len(pixels):
                pixels[count] = torch.from_numpy(image)
                count += 1
    return TensorImages(pixels[:count]), looks


def _num_kept(
    paths: Sequence[Path], first: Path, size: tuple[int, int], num_bytes: int, max_pixels: int
) -> int:
    """Return the number of images to make room for, given the first one's size and bytes.

    Raises:
        GraceError: if all files have the first one's size, but the machine has no memory for them.
    """
    total, memory = len(paths) * num_bytes, memory_bytes()
    if memory is None or total <= memory // 2:
        return len(paths)
    num_alike = 0
    for path in paths:
        with suppress(GraceError):
            num_alike += upright_size(path, max_pixels) == size
    if num_alike * num_bytes <= memory:
        return num_alike
    raise GraceError(
        f"{num_alike} images of {size[0]}×{size[1]} pixels, as '{printable(str(first))}' has, take "
        f"{in_bytes(num_alike * num_bytes)} of memory, more than this machine has",
        "learn smaller or fewer images",
        setting=Setting("data.image_size"),
    )


def _streamed(
    parts: Sequence[Sequence[Path]], channels: Literal[1, 3], rules: Rules, shorter: int | None
) -> Iterator[tuple[FileImages, Looks]]:
    """Yield images that stay in their files; read only as much as the rules need."""
    side = rules.image_size

    def size(path: Path) -> tuple[int, int] | GraceError:
        try:
            found = (side, side) if side is not None else upright_size(path, rules.max_pixels)
            if rules.skip_unreadable:
                with decoded(path, channels, rules.max_pixels, shorter):
                    pass
        except GraceError as error:
            return error
        return found

    paths = [path for part in parts for path in part]
    with decoding_threads() as pool:
        sizes = list(pool.map(size, paths))
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
        yield (
            FileImages(
                readable,
                channels,
                (height, width),
                shorter,
                max_pixels=rules.max_pixels,
                fit=rules.fit,
            ),
            own,
        )
        start += len(part)
