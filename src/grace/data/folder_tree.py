"""Find the classes and image files of a folder of images; nothing is decoded."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.data.class_names import twins
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True, kw_only=True)
class FolderTree:
    """The image files of a folder, by class and split.

    ``test`` is none where the folder has no test split.
    """

    root: Path
    class_names: Sequence[str]
    """Sorted; a class's label is its position."""
    train: Sequence[tuple[Path, int]]
    test: Sequence[tuple[Path, int]] | None
    num_ignored: int
    """Files that are no images by their extension."""


def scan(root: Path) -> FolderTree:
    """Find classes and images below ``root``.

    ``root/<class>/…`` is one set; ``root/train/<class>/…`` beside ``root/test/<class>/…`` (or
    ``val``, ``validation``) are two. Images may lie in subfolders of a class. Hidden files are not
    looked at.

    Raises:
        ValueError: if the folder is absent or has no class folders, a class has no images, two
            classes differ only in case or in how Unicode spells them, or the splits have
            different classes.
    """
    if not root.is_dir():
        raise GraceError(f"'{root}' is not a folder", "set data.root to the folder of the images")
    train_root, test_root = splits(root)
    names = class_folders(train_root)
    train, ignored = _files(train_root, names)
    if test_root is None:
        return FolderTree(root=root, class_names=names, train=train, test=None, num_ignored=ignored)
    _check_same_classes(names, train_root, test_root)
    test, ignored_test = _files(test_root, names)
    return FolderTree(
        root=root, class_names=names, train=train, test=test, num_ignored=ignored + ignored_test
    )


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders in ``root``, sorted.

    Raises:
        ValueError: if there are none, or two names are the same to a person.
    """
    names = folders_in(root)
    if not names:
        loose = len(loose_images(root))
        what = f", only {loose} images: put them" if loose else ": put images"
        raise GraceError(f"'{root}' holds no class folders{what} into '{root}/<class>/'")
    for first, second in twins(names):
        raise GraceError(
            f"'{root}' has two folders for one class, '{first}' and '{second}'",
            "merge or rename them",
        )
    return names


def folders_in(root: Path) -> list[str]:
    """Return the names of the folders in ``root`` that are not hidden, sorted.

    Raises:
        ValueError: if ``root`` cannot be listed.
    """
    return [entry.name for entry in _entries(root) if _is_folder(entry)]


def loose_images(root: Path) -> list[Path]:
    """Return the image files directly in ``root``, sorted; errors as in ``folders_in``."""
    return [entry for entry in _entries(root) if is_image(entry.name) and not _is_folder(entry)]


@final
@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """What lies below a folder: images by their extension, and all that is not looked into."""

    images: Sequence[Path]
    others: Sequence[Path]
    """Files that are no images by their extension, or no regular files (pipes, devices)."""
    links: Sequence[Path]
    """Links to folders: not followed, for they may lead round in a circle."""
    closed: Sequence[Path]
    """Folders that cannot be listed."""


def files_below(folder: Path) -> FoundFiles:
    """Find the files below a folder, hidden ones left out, each folder's own in order of name.

    A link to a file counts as the file. The folder itself may be a link; links to folders below
    it are not followed.
    """
    images: list[Path] = []
    others: list[Path] = []
    links: list[Path] = []
    closed: list[Path] = []
    walk = os.walk(folder, onerror=lambda error: closed.append(Path(error.filename or folder)))
    for parent, folders, names in walk:
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        links.extend(path for name in folders if _is_link(path := Path(parent) / name))
        for name in sorted(name for name in names if not _is_hidden(name)):
            path = Path(parent) / name
            is_candidate = is_image(name) and not _is_special(path)
            (images if is_candidate else others).append(path)
    return FoundFiles(images=images, others=others, links=links, closed=closed)


def splits(root: Path) -> tuple[Path, Path | None]:
    """Return the folders of training and test classes."""
    train = root / "train"
    tests = [root / name for name in ("test", "val", "validation") if (root / name).is_dir()]
    # A folder named "train" that holds images directly is a class: trains, perhaps.
    if not train.is_dir() or loose_images(train):
        return root, None
    return train, tests[0] if tests else None


def _files(root: Path, names: Sequence[str]) -> tuple[list[tuple[Path, int]], int]:
    files: list[tuple[Path, int]] = []
    num_ignored = 0
    for label, name in enumerate(names):
        found = files_below(root / name)
        check_has_images(root / name, found)
        files.extend((path, label) for path in found.images)
        num_ignored += len(found.others)
    return files, num_ignored


def check_has_images(folder: Path, found: FoundFiles) -> None:
    """Refuse a class folder without images."""
    if not found.images:
        raise GraceError(f"class folder '{folder}' has no images", "add some or remove it")


def _check_same_classes(names: Sequence[str], train: Path, test: Path) -> None:
    tested = class_folders(test)
    for name in sorted(set(names) ^ set(tested)):
        there, lacking = (train, test) if name in names else (test, train)
        raise GraceError(
            f"class '{name}' is in '{there}' but not in '{lacking}'",
            "give both its images, or remove it",
        )


def is_image(name: str) -> bool:
    """Tell whether a file is an image by its extension."""
    return Path(name).suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def _entries(root: Path) -> list[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if not _is_hidden(entry.name))
    except OSError as error:
        raise GraceError(
            f"cannot list folder '{root}' ({error.strerror})", "allow it to be read"
        ) from None


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _is_folder(path: Path) -> bool:
    # Path.is_dir raises for what may not be looked at; so does is_symlink for overlong paths.
    try:
        return path.is_dir()
    except OSError:
        return False


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        return False


def _is_special(path: Path) -> bool:
    """Tell pipes and devices, which would be waited for, from files and from broken links."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
