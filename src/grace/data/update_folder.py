"""Load the images of one update: a folder of class folders, or ``train/`` and ``test/``."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.base.errors import GraceError
from grace.data.decoding import MAX_PIXELS
from grace.data.findings import Rules, judge_layout, refuse_first
from grace.data.folder_tree import ImageFile, scan
from grace.data.images import TensorImages
from grace.data.reading import Part, read_parts
from grace.data.selection import first_of_each
from grace.settings.experiment import Fit


@final
@dataclass(frozen=True, kw_only=True)
class UpdateFolder:
    """Images of one update, sorted by class name, then by file; test images are optional."""

    images: TensorImages
    labels: Sequence[str]
    """Class name of each image, in Unicode's composed form."""
    paths: Sequence[Path]
    test_images: TensorImages | None
    test_labels: Sequence[str]
    test_paths: Sequence[Path]
    notes: Sequence[str]
    """Findings that are not errors, such as images that were left out."""
    digest: str
    """SHA-256 (hexadecimal) of names, labels and pixels: equal for equal images."""


def load_update(
    root: Path,
    channels: Literal[1, 3],
    image_size: int | None,
    *,
    skip_unreadable: bool = False,
    skip_duplicates: bool = False,
    max_images_per_class: int | None = None,
    max_pixels: int = MAX_PIXELS,
    fit: Fit = "crop",
) -> UpdateFolder:
    """Load the images of one update.

    ``root`` has a layout of ``folder_tree.scan``; there may be test images of all classes, of some
    or of none. One class is enough. An image that is twice in a class is used once.

    Args:
        root: folder of the new images.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the square made of each image; ``None``: all images
            must have one size, which is kept.
        skip_unreadable: leave unreadable images out instead of refusing them.
        skip_duplicates: leave out images that are in two classes, and training images that are test
            images too, instead of refusing them.
        max_images_per_class: largest number of files of a class in each part, the first by name,
            at least 1; ``None``: all.
        max_pixels: an image with more pixels is unreadable.
        fit: how an image becomes a square.

    Raises:
        GraceError: for the first thing that is wrong with the folder, a class name or an image.
    """
    most = max_images_per_class
    if most is not None and most < 1:
        raise GraceError(f"max_images_per_class {most} leaves none", "use 1 or more")
    rules = Rules(
        skip_unreadable=skip_unreadable,
        skip_duplicates=skip_duplicates,
        image_size=image_size,
        max_pixels=max_pixels,
        fit=fit,
    )
    tree = scan(root)
    layout = judge_layout(tree, rules)
    refuse_first(layout, root)
    kinds = (False,) if tree.test is None else (False, True)
    parts = [_first(tree.files(is_test), most) for is_test in kinds]
    (train, *tests), found = read_parts(root, parts, channels, rules)
    test = tests[0] if tests and tests[0].files else None
    used = [train] if test is None else [train, test]
    return UpdateFolder(
        images=_in_memory(train),
        labels=train.class_names,
        paths=train.paths,
        test_images=_in_memory(test) if test is not None else None,
        test_labels=test.class_names if test is not None else (),
        test_paths=test.paths if test is not None else (),
        notes=[finding.text for finding in (*layout, *found)],
        digest=_digest(used),
    )


def _digest(parts: Sequence[Part]) -> str:
    digest = hashlib.sha256(json.dumps([part.class_names for part in parts]).encode())
    for part in parts:
        digest.update(part.images.digest())
    return digest.hexdigest()


def _first(files: Iterable[ImageFile], most: int | None) -> list[ImageFile]:
    """Return the first files of every class."""
    files = sorted(files)
    return [files[place] for place in first_of_each([file.class_name for file in files], most)]


def _in_memory(part: Part) -> TensorImages:
    assert isinstance(part.images, TensorImages)
    return part.images
