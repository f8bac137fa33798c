"""Find the classes and image files of a folder of images; nothing is decoded."""

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final


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
        raise ValueError(f"'{root}' is not a folder: set data.root to the folder of the images")
    train_root, test_root = _splits(root)
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
    names = sorted(
        entry.name for entry in root.iterdir() if entry.is_dir() and not _is_hidden(entry.name)
    )
    if not names:
        raise ValueError(f"'{root}' holds no class folders: put images into '{root}/<class>/'")
    spelled: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if key in spelled:
            raise ValueError(
                f"'{root}' has two folders for one class, '{spelled[key]}' and '{name}': "
                "merge or rename them"
            )
        spelled[key] = name
    return names


def image_files(folder: Path) -> tuple[list[Path], int]:
    """Return the image files below a folder, sorted, and the number of other files."""
    found: list[Path] = []
    ignored = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in sorted(names):
            if _is_hidden(name):
                continue
            if _is_image(name):
                found.append(Path(parent) / name)
            else:
                ignored += 1
    return found, ignored


def _splits(root: Path) -> tuple[Path, Path | None]:
    """Return the folders of training and test classes."""
    train = root / "train"
    tests = [root / name for name in ("test", "val", "validation") if (root / name).is_dir()]
    # A folder named "train" that holds images directly is a class: trains, perhaps.
    if not train.is_dir() or any(_is_image(entry.name) for entry in train.iterdir()):
        return root, None
    return train, tests[0] if tests else None


def _files(root: Path, names: Sequence[str]) -> tuple[list[tuple[Path, int]], int]:
    files: list[tuple[Path, int]] = []
    num_ignored = 0
    for label, name in enumerate(names):
        own, ignored = image_files(root / name)
        if not own:
            raise ValueError(f"class folder '{root / name}' has no images: add some or remove it")
        files.extend((path, label) for path in own)
        num_ignored += ignored
    return files, num_ignored


def _check_same_classes(names: Sequence[str], train: Path, test: Path) -> None:
    tested = class_folders(test)
    for name in sorted(set(names) ^ set(tested)):
        there, lacking = (train, test) if name in names else (test, train)
        raise ValueError(
            f"class '{name}' is in '{there}' but not in '{lacking}': give both its images, or "
            "remove it"
        )


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def _is_hidden(name: str) -> bool:
    return name.startswith(".")
