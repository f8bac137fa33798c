"""Scan a folder of images: find its classes and image files. Nothing is decoded or judged."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.data.class_names import class_name
from grace.text.escaping import printable
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """Everything below a folder: images by their extension, and what is not looked into."""

    images: Sequence[Path]
    others: Sequence[Path]
    """Files that are no images by their extension, or no regular files (pipes, devices)."""
    links: Sequence[Path]
    """Links to folders: not followed, for they may lead round in a circle."""
    closed: Sequence[Path]
    """Folders that cannot be listed."""


@final
@dataclass(frozen=True, kw_only=True)
class ClassFolder:
    """A class's folder in one of the two parts."""

    path: Path
    name: str
    """The class's name in Unicode's composed form; where it is refused, as it is, escaped."""
    refusal: GraceError | None
    """Why the name is refused."""
    is_test: bool
    found: FoundFiles


@final
@dataclass(frozen=True, order=True)
class ImageFile:
    """An image file of a class, readable or not; sorted by class name and then by path."""

    class_name: str
    path: Path
    is_test: bool


@final
@dataclass(frozen=True, kw_only=True)
class FolderTree:
    """The classes of a folder of images and their files, in one part or two."""

    root: Path
    train: Path
    """The folder of the training classes: ``root`` itself, or ``root/train``."""
    test: Path | None
    """The folder of the test classes."""
    folders: Sequence[ClassFolder]
    """Training classes and then test classes, each sorted by name."""
    loose: Sequence[Path]
    """Images outside the class folders."""
    unused: Sequence[Path]
    """Folders beside ``train`` and ``test``."""
    unclear: Sequence[Path]
    """Folders that could be a class or a part."""
    closed: Sequence[Path]
    """Parts that cannot be listed."""

    @property
    def class_names(self) -> list[str]:
        """Names of the training classes, sorted."""
        return sorted({folder.name for folder in self.folders if not folder.is_test})

    def files(self, is_test: bool) -> list[ImageFile]:
        """Return the image files of one part by class, and of a class as ``files_below`` does."""
        return [
            ImageFile(folder.name, path, is_test)
            for folder in self.folders
            if folder.is_test == is_test
            for path in folder.found.images
        ]


def scan(root: Path) -> FolderTree:
    """Find classes and images below ``root``, whatever is wrong with them.

    ``root/<class>/…`` is one part, for training; ``root/train/<class>/…`` beside
    ``root/test/<class>/…`` (or ``val``, ``validation``) are two. Images may lie in subfolders of a
    class; a class folder may be a link, links to folders below it are not followed. Hidden files
    are not looked at.

    Raises:
        GraceError: if ``root`` is not a folder.
    """
    if not root.is_dir():
        raise GraceError(f"'{printable(str(root))}' is not a folder", "give the folder of images")
    closed: list[Path] = []
    train, test = split_folders(root)
    unclear = _unclear(root) if train == root else []
    parts = [(train, False)] if not unclear else []
    parts += [(test, True)] if test is not None else []
    folders = [
        _class_folder(path, is_test)
        for part, is_test in parts
        for path in _listed(part, closed)
        if _is_folder(path)
    ]
    beside = [part for part in (root, test) if part is not None and train != root]
    unused = [path for path in _listed(root, closed) if train != root and _is_folder(path)]
    return FolderTree(
        root=root,
        train=train,
        test=test,
        folders=sorted(folders, key=lambda folder: (folder.is_test, folder.name)),
        loose=[path for part in beside or [root] for path in _loose(part)],
        unused=[path for path in unused if not any(path.samefile(part) for part, _ in parts)],
        unclear=unclear,
        closed=list(dict.fromkeys(closed)),
    )


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
            is_candidate = _is_image(path) and not _is_special(path)
            (images if is_candidate else others).append(path)
    return FoundFiles(images=images, others=others, links=links, closed=closed)


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """Return the folders of the training and of the test classes."""
    train = root / "train"
    tests = [root / name for name in ("test", "val", "validation") if _is_folder(root / name)]
    # A folder named "train" that holds images directly is a class: trains, perhaps.
    if not _is_folder(train) or _loose(train):
        return root, None
    return train, tests[0] if tests else None


def _unclear(root: Path) -> list[Path]:
    """Find class folders that look like parts: images of many classes would become one class."""
    return [
        path
        for path in _listed(root, [])
        if path.name.casefold() in ("train", "test", "val", "validation")
        and _is_folder(path)
        and any(_is_folder(inner) for inner in _listed(path, []))
    ]


def _class_folder(path: Path, is_test: bool) -> ClassFolder:
    name, refusal = printable(path.name), None
    try:
        name = class_name(path.name)
    except GraceError as error:
        refusal = error
    return ClassFolder(
        path=path, name=name, refusal=refusal, is_test=is_test, found=files_below(path)
    )


def _loose(part: Path) -> list[Path]:
    """Return the image files directly in a folder, sorted."""
    return [path for path in _listed(part, []) if _is_image(path) and not _is_folder(path)]


def _listed(folder: Path, closed: list[Path]) -> list[Path]:
    """Return what lies in a folder, sorted; one that cannot be listed is added to ``closed``."""
    try:
        return sorted(path for path in folder.iterdir() if not _is_hidden(path.name))
    except OSError:
        closed.append(folder)
        return []


def _is_image(path: Path) -> bool:
    """Tell images from other files by their extension."""
    return path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _is_link(path: Path) -> bool:
    return stat.S_ISLNK(_mode(path, follow_symlinks=False))


def _is_special(path: Path) -> bool:
    """Tell pipes and devices, which would be waited for, from files and from broken links."""
    mode = _mode(path)
    return mode != 0 and not stat.S_ISREG(mode)


def _mode(path: Path, *, follow_symlinks: bool = True) -> int:
    """Return what kind of file it is, or 0 if it may not be looked at or its path is too long."""
    try:
        return path.stat(follow_symlinks=follow_symlinks).st_mode
    except OSError:
        return 0
