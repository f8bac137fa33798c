"""The images of one update: a folder of class folders, or train/ beside test/."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.data.class_names import class_name
from grace.data.decoding import other_size, read_all
from grace.data.folder_tree import check_has_images, class_folders, files_below
from grace.data.images import TensorImages
from grace.data.selection import duplicates, duplicates_note, pixel_keys
from grace.data.update_parts import update_parts
from grace.text.escaping import printable
from grace.text.nearest import did_you_mean
from grace.text.refusals import GraceError, Setting

Named = Sequence[tuple[Path, str]]


@final
@dataclass(frozen=True, kw_only=True)
class UpdateFolder:
    """Images of one update, sorted by class name and then by file; there may be no test images."""

    images: TensorImages
    labels: Sequence[str]
    """Class name of each image, in Unicode's composed form."""
    paths: Sequence[Path]
    test_images: TensorImages | None
    test_labels: Sequence[str]
    test_paths: Sequence[Path]
    notes: Sequence[str]
    """What was left out, counted."""
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
) -> UpdateFolder:
    """Load the images of one update.

    ``root/<class>/…`` holds training images; with ``root/train/<class>/…`` there may be test images
    in ``root/test/<class>/…`` (or ``val``, ``validation``), of all those classes or of some. One
    class is enough. Images may lie in subfolders of a class; a class folder may be a link, links to
    folders below it are not followed. Hidden files are not looked at. An image that a class has
    twice is used once.

    Args:
        root: folder of the new images.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the centred square that is cut from each image; none demands
            that all have one size and keeps it.
        skip_unreadable: leave unreadable images out instead of refusing.
        skip_duplicates: leave out images that two classes share, and training images that are test
            images too, instead of refusing.
        max_images_per_class: files taken of each class in either part, the first by name, at
            least 1; none takes all.

    Raises:
        ValueError: for anything wrong with the folder, a class name or an image; it is named.
    """
    if max_images_per_class is not None and max_images_per_class < 1:
        raise GraceError(
            f"max_images_per_class {max_images_per_class} leaves none", "use 1 or more"
        )
    try:
        parts = update_parts(root)
        notes = parts.notes()
        files = [_files(parts.train, max_images_per_class, notes)]
        if parts.test is not None:
            files.append(_files(parts.test, max_images_per_class, notes))
            _check_test_classes(files[0], files[1], parts.train, parts.test)
        read = [_read(part, channels, image_size, skip_unreadable) for part in files]
        folder = _finished(read, notes, skip_duplicates)
        _check_all_classes(files[0], folder)
        return folder
    except GraceError as error:
        # A file's name may hold anything.
        error.what, error.remedy = printable(error.what), printable(error.remedy)
        raise


def _files(part: Path, limit: int | None, notes: list[str]) -> Named:
    """Find the image files of each class of a part, and add to the notes what is no image."""
    folders = {class_name(folder): part / folder for folder in class_folders(part)}
    files: list[tuple[Path, str]] = []
    num_others = num_links = 0
    for name, folder in sorted(folders.items()):
        found = files_below(folder)
        for closed in found.closed:
            raise GraceError(f"cannot list folder '{closed}'", "allow it to be read")
        check_has_images(folder, found)
        files.extend((path, name) for path in sorted(found.images)[:limit])
        num_others += len(found.others)
        num_links += len(found.links)
    if num_others:
        notes.append(f"{num_others} files that are no images were ignored in '{part}'")
    if num_links:
        notes.append(f"{num_links} links to folders were not followed in '{part}'")
    return files


def _check_test_classes(train: Named, test: Named, train_root: Path, test_root: Path) -> None:
    known = sorted({name for _, name in train})
    for _, name in test:
        if name not in known:
            raise GraceError(
                f"class '{name}' is in '{test_root}' but not in '{train_root}'",
                f"give it training images, or remove it{did_you_mean(name, known)}",
            )


def _check_all_classes(train: Named, folder: UpdateFolder) -> None:
    lacking = sorted({name for _, name in train} - set(folder.labels))
    if lacking:
        raise GraceError(f"class '{lacking[0]}' has no usable training images left", "add some")


@final
@dataclass(frozen=True, kw_only=True)
class _Part:
    """Images of a part that were read, and one line per file that was not."""

    images: TensorImages
    files: Named
    problems: Sequence[str]

    @property
    def labels(self) -> list[str]:
        return [name for _, name in self.files]

    @property
    def paths(self) -> list[Path]:
        return [path for path, _ in self.files]

    def without(self, dropped: set[int]) -> "_Part":
        if not dropped:
            return self
        kept = [place for place in range(len(self.files)) if place not in dropped]
        return _Part(
            images=TensorImages(self.images.pixels[kept]),
            files=[self.files[place] for place in kept],
            problems=self.problems,
        )


def _read(
    files: Named, channels: Literal[1, 3], image_size: int | None, skip_unreadable: bool
) -> _Part:
    paths = [path for path, _ in files]
    decoded = read_all(paths, channels, image_size, skip_unreadable)
    return _Part(
        images=TensorImages(decoded.pixels),
        files=[files[place] for place in decoded.kept],
        problems=decoded.problems,
    )


def _finished(parts: Sequence[_Part], notes: list[str], skip_duplicates: bool) -> UpdateFolder:
    """Check the parts against each other and leave duplicates out."""
    _check_one_size(parts)
    problems = [line for part in parts for line in part.problems]
    if problems:
        first = problems[0].removesuffix(": replace or remove it, or set data.skip_unreadable=true")
        notes.append(f"{len(problems)} unreadable images were left out; the first: {first}")
    train, *tests = (_without_copies(part, skip_duplicates, notes) for part in parts)
    test = tests[0] if tests and tests[0].files else None
    if test is not None:
        train = _without_tested(train, test, skip_duplicates, notes)
    return UpdateFolder(
        images=train.images,
        labels=train.labels,
        paths=train.paths,
        test_images=test.images if test is not None else None,
        test_labels=test.labels if test is not None else (),
        test_paths=test.paths if test is not None else (),
        notes=[printable(note) for note in notes],
        digest=_digest(train, test),
    )


def _check_one_size(parts: Sequence[_Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if part.images.shape != first.images.shape:
            found, expected = (
                (own.paths[0], own.images.shape[2], own.images.shape[1]) for own in (part, first)
            )
            raise other_size(found, expected)


def copies(
    keys: Sequence[Hashable], labels: Sequence[str]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Find images that a part has more than once.

    Args:
        keys: N keys, equal for equal images.
        labels: class name of each image.

    Returns:
        Positions of further copies within one class, ascending, and pairs of positions of one
        image in two classes: the first copy with each that is not of its class.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    repeated: list[int] = []
    shared: list[tuple[int, int]] = []
    for own in places.values():
        other = [place for place in own if labels[place] != labels[own[0]]]
        shared.extend((own[0], place) for place in other)
        if not other:
            repeated.extend(own[1:])
    return sorted(repeated), sorted(shared)


def _without_copies(part: _Part, skip_duplicates: bool, notes: list[str]) -> _Part:
    """Keep one copy of an image that a class has twice, and none of one that two classes have."""
    keys = pixel_keys(part.images.pixels)
    repeated, shared = copies(keys, part.labels)
    if shared and not skip_duplicates:
        (first, first_name), (second, second_name) = (part.files[place] for place in shared[0])
        raise GraceError(
            f"'{first}' of class '{first_name}' and '{second}' of class '{second_name}' are "
            f"the same image ({len(shared)} such pairs)",
            "remove the wrong one of each",
            setting=Setting("data.skip_duplicates", "true"),
        )
    if repeated:
        notes.append(f"{len(repeated)} further copies of images of the same class were left out")
    twofold = {keys[first] for first, _ in shared}
    dropped = {place for place, key in enumerate(keys) if key in twofold}
    if dropped:
        notes.append(f"{len(dropped)} copies of images that several classes share were left out")
    return part.without(dropped | set(repeated))


def _without_tested(train: _Part, test: _Part, skip_duplicates: bool, notes: list[str]) -> _Part:
    """Leave out training images that are test images too."""
    pairs = duplicates(pixel_keys(train.images.pixels), pixel_keys(test.images.pixels))
    if not pairs:
        return train
    if not skip_duplicates:
        first, second = pairs[0]
        raise GraceError(
            f"test image '{test.paths[second]}' is also the training image '{train.paths[first]}' "
            f"({len(pairs)} such pairs)",
            "remove one of each",
            setting=Setting("data.skip_duplicates", "true"),
        )
    notes.append(duplicates_note(pairs, dropped=True))
    return train.without({first for first, _ in pairs})


def _digest(train: _Part, test: _Part | None) -> str:
    parts = [train, test] if test is not None else [train]
    digest = hashlib.sha256(json.dumps([part.labels for part in parts]).encode())
    for part in parts:
        digest.update(part.images.digest())
    return digest.hexdigest()
