"""Scan a folder of images for classes and image files, without decoding or judging them."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.base.errors import GraceError, not_there
from grace.base.words import printable
from grace.data.class_names import class_name

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""Extensions of the images of a folder, in upper or lower case."""

REFUSED = (".avif", ".heic", ".heif", ".hif")
"""Extensions of images that are not read; see ``image_file.refuse_frames_of_films``."""

REFUSED_TEXT = "AVIF and HEIC images, which are left out unless you convert them to PNG or JPEG"
"""What is said of such images in a folder; their number follows."""


@final
@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """The files and folders below a folder; a file is an image by its extension."""

    images: Sequence[Path]
    others: Sequence[Path]
    """Files with another extension, and files that are not regular (pipes, devices)."""
    refused: Sequence[Path]
    """AVIF and HEIC images, by their extension."""
    links: Sequence[Path]
    """Links to folders; they are not followed, because they may form a circle."""
    closed: Sequence[Path]
    """Folders that cannot be listed."""


@final
@dataclass(frozen=True, kw_only=True)
class ClassFolder:
    """The folder of a class in the training or the test part."""

    path: Path
    name: str
    """The class's name in Unicode's composed form; a refused name is only escaped."""
    refusal: GraceError | None
    """Why the name is refused; ``None``: it is allowed."""
    is_test: bool
    found: FoundFiles


@final
@dataclass(frozen=True, order=True)
class ImageFile:
    """An image file of a class, readable or not; sorts by class name, then by path."""

    class_name: str
    path: Path
    is_test: bool


@final
@dataclass(frozen=True, kw_only=True)
class FolderTree:
    """The result of a scan: classes and files, in one part (training) or two (and test)."""

    root: Path
    train: Path
    """The folder of the training classes: ``root`` itself, or ``root/train``."""
    test: Path | None
    """The folder of the test classes; ``None``: there is one part."""
    folders: Sequence[ClassFolder]
    """Training classes and then test classes, each sorted by name."""
    loose: Sequence[Path]
    """Images outside the class folders."""
    unused: Sequence[Path]
    """Folders beside ``train`` and ``test``."""
    unclear: Sequence[Path]
    """Folders that could be either a class or a part."""
    closed: Sequence[Path]
    """Parts that cannot be listed."""

    @property
    def class_names(self) -> list[str]:
        """Names of the training classes, sorted."""
        return sorted({folder.name for folder in self.folders if not folder.is_test})

    def files(self, is_test: bool) -> list[ImageFile]:
        """Return the image files of one part, class by class."""
        return [
            ImageFile(folder.name, path, is_test)
            for folder in self.folders
            if folder.is_test == is_test
            for path in folder.found.images
        ]


def scan(root: Path) -> FolderTree:
    """Find classes and images below ``root``, also those with problems.

    ``root/<class>/…`` is one part, for training. ``root/train/<class>/…`` with
    ``root/test/<class>/…`` (or ``val``, ``validation``) are two parts. Images may lie in subfolders
    of a class. A class folder may be a link; links to folders below it are not followed. Hidden
    files are ignored.

    Raises:
        GraceError: if ``root`` is not a folder.
    """
    if not root.exists():
        raise not_there(printable(str(root)))
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
    """Find the files below a folder except hidden ones; within a folder, sorted by name.

    A link to a file counts as a file. The folder itself may be a link; links to folders below it
    are not followed.
    """
    images: list[Path] = []
    others: list[Path] = []
    refused: list[Path] = []
    links: list[Path] = []
    closed: list[Path] = []
    waiting = [folder]
    while waiting:  # os.walk calls itself for each level, and some are deeper than Python allows.
        parent = waiting.pop()
        try:
            with os.scandir(parent) as entries:
                kinds = {e.name: _leads_to_folder(e) for e in entries if not _is_hidden(e.name)}
        except OSError:
            closed.append(parent)
            continue
        inner: list[Path] = []
        for name in sorted(kinds):
            path = parent / name
            if kinds[name]:
                (links if _is_link(path) else inner).append(path)
            else:
                is_candidate = _is_image(path) and not _is_special(path)
                is_refused = path.suffix.lower() in REFUSED
                (images if is_candidate else refused if is_refused else others).append(path)
        waiting += reversed(inner)
    return FoundFiles(images=images, others=others, refused=refused, links=links, closed=closed)


def _leads_to_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # For example a link to itself.
        return False


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """Return the folders of the training and the test classes; ``None``: no test part."""
    train = root / "train"
    tests = [root / name for name in ("test", "val", "validation") if _is_folder(root / name)]
    # A folder "train" with images directly in it is a class (pictures of trains).
    if not _is_folder(train) or _loose(train):
        return root, None
    return train, tests[0] if tests else None


def _unclear(root: Path) -> list[Path]:
    """Find class folders that look like parts; as a class, they would mix many classes."""
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
    """Return the entries of a folder, sorted; a folder that cannot be listed joins ``closed``."""
    try:
        return sorted(path for path in folder.iterdir() if not _is_hidden(path.name))
    except OSError:
        closed.append(folder)
        return []


def _is_image(path: Path) -> bool:
    """Return True if a file has the extension of an image."""
    return path.suffix.lower() in EXTENSIONS


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _is_link(path: Path) -> bool:
    return stat.S_ISLNK(_mode(path, follow_symlinks=False))


def _is_special(path: Path) -> bool:
    """Return True for pipes and devices, which would block a reader."""
    mode = _mode(path)
    return mode != 0 and not stat.S_ISREG(mode)


def _mode(path: Path, *, follow_symlinks: bool = True) -> int:
    """Return the mode of a file; 0 if it cannot be read, such as for a path that is too long."""
    try:
        return path.stat(follow_symlinks=follow_symlinks).st_mode
    except OSError:
        return 0
