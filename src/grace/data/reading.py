"""Read the images of a folder: decode or stream them, judge them, leave out unusable ones.

Shapes: N images, C channels, H×W pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

import torch

from grace.data.decoding import open_image, upright_size
from grace.data.files import FileImages
from grace.data.findings import Finding, Rules, judge_images, refuse_first
from grace.data.folder_tree import ImageFile
from grace.data.images import Images, TensorImages
from grace.data.looks import Look, decoding_threads, file_keys, look_at
from grace.text.refusals import GraceError

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
        read = [decode_all(own, channels, rules.image_size) for own in paths]
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
    paths: Sequence[Path], channels: Literal[1, 3], image_size: int | None
) -> tuple[TensorImages, Looks]:
    """Decode image files into memory.

    Args:
        paths: N files.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the centred square to cut; ``None``: keep the images of the
            first one's size, and leave out the pixels of others.

    Returns:
        The images that were read, in order; and for each file its properties, or the error if it
        cannot be read.
    """
    looks: list[Look | GraceError] = []
    pixels = torch.empty((0, channels, 1, 1), dtype=torch.uint8)
    count = 0
    read = partial(look_at, channels=channels, image_size=image_size)
    with decoding_threads() as pool:
        for found in pool.map(read, paths):
            if isinstance(found, GraceError):
                looks.append(found)
                continue
            look, image = found
            looks.append(look)
            if count == 0:
                pixels = torch.empty((len(paths), *image.shape), dtype=torch.uint8)
            if image.shape == pixels.shape[1:]:
                pixels[count] = torch.from_numpy(image)
                count += 1
    return TensorImages(pixels[:count]), looks


def _streamed(
    parts: Sequence[Sequence[Path]], channels: Literal[1, 3], rules: Rules, shorter: int | None
) -> Iterator[tuple[FileImages, Looks]]:
    """Yield images that stay in their files; read only as much as the rules need."""
    side = rules.image_size

    def size(path: Path) -> tuple[int, int] | GraceError:
        try:
            found = (side, side) if side is not None else upright_size(path)
            if rules.skip_unreadable:
                open_image(path, channels)
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
        yield FileImages(readable, channels, (height, width), shorter), own
        start += len(part)
