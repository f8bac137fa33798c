"""Find classes and image files in folders, without decoding or judging them. Imports no torch."""

import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.base.errors import GraceError, not_there
from grace.base.words import JOINERS, is_shown, one_line, printable

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""Extensions of the images of a folder, in upper or lower case."""
NO_IMAGE = "no image"
"""Why most files are not used: they have another extension, or are pipes or devices."""
_FILMS = (".avif", ".heic", ".heif", ".hif")
"""Extensions of images that are not read; see ``decoding.FORMATS``."""
_PARTS = ("test", "val", "validation")


Ignored = list[tuple[Path, str]]
"""Files and folders that are not used, and why."""


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
    images: Sequence[Path]


@final
@dataclass(frozen=True, order=True)
class ImageFile:
    """An image file of a class, readable or not; sorts by part, class name and path."""

    is_test: bool
    class_name: str
    path: Path


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
    ignored: Ignored
    unclear: Sequence[Path]
    """Folders that could be either a class or a part."""

    @property
    def class_names(self) -> list[str]:
        """Names of the training classes, sorted."""
        return sorted({folder.name for folder in self.folders if not folder.is_test})

    @property
    def files(self) -> list[ImageFile]:
        """The image files, those of training first; then sorted by class name and by path."""
        return sorted(
            ImageFile(folder.is_test, folder.name, path)
            for folder in self.folders
            for path in folder.images
        )


def scan(root: Path) -> FolderTree:
    """Find classes and images below ``root``, also those with problems.

    ``root/<class>/…`` is one part, for training. ``root/train/<class>/…`` with
    ``root/test/<class>/…`` (or ``val``, ``validation``) are two parts. Images may lie in subfolders
    of a class. A class folder may be a link; links to folders below it are not followed. Hidden
    files are ignored.

    Raises:
        GraceError: if ``root`` is not a folder.
    """
    refuse_no_folder(root)
    train, test = split_folders(root)
    is_split = train != root
    # It would mix many classes.
    unclear = [
        path
        for path in ([] if is_split else _folders(root))
        if path.name.casefold() in ("train", *_PARTS) and _folders(path)
    ]
    parts = [(train, False)] if not unclear else []
    parts += [(test, True)] if test is not None else []
    beside = [part for part in (root, test) if part is not None and is_split] or [root]
    ignored = [
        (path, "an image outside the class folders") for part in beside for path in _loose(part)
    ]
    if is_split:
        used = [part for part, _ in parts]
        others = [path for path in _folders(root) if not any(map(path.samefile, used))]
        ignored += [(path, "a folder beside train") for path in others]
    folders = [
        _class_folder(path, is_test, ignored) for part, is_test in parts for path in _folders(part)
    ]
    return FolderTree(
        root=root,
        train=train,
        test=test,
        folders=sorted(folders, key=lambda folder: (folder.is_test, folder.name)),
        ignored=ignored,
        unclear=unclear,
    )


def refuse_no_folder(root: Path) -> None:
    """Raise a GraceError if a path leads nowhere, or not to a folder."""
    if not root.exists():
        raise not_there(printable(str(root)))
    if not root.is_dir():
        raise GraceError(f"'{printable(str(root))}' is not a folder", "give the folder of images")


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """Return the folders of the training and the test classes; ``None``: no test part."""
    train = root / "train"
    # A folder "train" with images directly in it is a class (pictures of trains).
    if not _is_folder(train) or _loose(train):
        return root, None
    return train, next((root / name for name in _PARTS if _is_folder(root / name)), None)


def _class_folder(path: Path, is_test: bool, ignored: Ignored) -> ClassFolder:
    name, refusal = printable(path.name), None
    try:
        name = class_name(path.name)
    except GraceError as error:
        refusal = error
    images = images_below(path, ignored)
    return ClassFolder(path=path, name=name, refusal=refusal, is_test=is_test, images=images)


def images_below(folder: Path, ignored: Ignored) -> list[Path]:
    """Find the image files below a folder except hidden ones; within a folder, sorted by name.

    A file is an image by its extension; others join ``ignored``. A link to a file counts as a file.
    The folder itself may be a link; links to folders below it are not followed: they may form a
    circle.
    """
    images: list[Path] = []
    waiting = [folder]
    while waiting:  # os.walk calls itself for each level, and some are deeper than Python allows.
        inner: list[Path] = []
        for path in _listed(waiting.pop(), ignored):
            mode = _mode(path)
            if mode == stat.S_IFDIR and path.is_symlink():
                ignored.append((path, "a link to a folder"))
            elif mode == stat.S_IFDIR:
                inner.append(path)
            elif _is_image(path) and mode in (0, stat.S_IFREG):
                images.append(path)  # Reading a link to nothing says what is wrong.
            elif path.suffix.lower() in _FILMS:
                ignored.append((path, "AVIF or HEIC: convert it to PNG or JPEG"))
            else:
                ignored.append((path, NO_IMAGE))
        waiting += reversed(inner)
    return images


def _loose(part: Path) -> list[Path]:
    """Return the image files directly in a folder, sorted."""
    return [path for path in _listed(part, []) if _is_image(path) and not _is_folder(path)]


def _folders(folder: Path) -> list[Path]:
    return [path for path in _listed(folder, []) if _is_folder(path)]


def _listed(folder: Path, ignored: Ignored) -> list[Path]:
    """Return the entries of a folder, sorted; a folder that cannot be listed is ignored."""
    try:
        return sorted(path for path in folder.iterdir() if path.name[0] != ".")
    except OSError:
        ignored.append((folder, "a folder that cannot be listed"))
        return []


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS


def _is_folder(path: Path) -> bool:
    return _mode(path) == stat.S_IFDIR


def _mode(path: Path) -> int:
    """Return the kind of a file; 0 if it cannot be read, such as for a path that is too long."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return 0


def class_name(text: str) -> str:
    """Return a class's name in Unicode's composed form (NFC), if it is allowed.

    Args:
        text: a name that a user wrote, or the name of a folder.

    Raises:
        GraceError: if it is blank, has a character that a terminal does not show (controls, line
            breaks, bytes that are not UTF-8), or has more than 255 bytes, the limit of a folder.
    """
    # Composing takes time that grows with the square of the length, and shortens a name to a third
    # at most.
    name = text if len(text) > 3 * 255 else unicodedata.normalize("NFC", text)
    if not name.strip():
        reason = "is blank"
    elif not all(is_shown(c, before) for before, c in zip(" " + name, name, strict=False)):
        reason = "has a control character, a line break or bytes that are not UTF-8"
    elif (num_bytes := len(name.encode())) > 255:
        reason = f"has {num_bytes} bytes, more than 255"
    else:
        return name
    shown = one_line(name, 255)
    raise GraceError(f"'{shown}' {reason}", "rename its folder", where="the class name")


def spelling(name: str) -> str:
    """Return a form that is equal for names that differ only in case or Unicode spelling.

    Spaces of all kinds are equal, and joiners are left out: people see little or nothing of them.
    """
    if not name.isascii():
        name = re.sub(f"[{JOINERS}]", "", re.sub(r"[^\S\n]", " ", name))
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def twins(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of names that differ only in case or in how Unicode spells them."""
    spelled: dict[str, str] = {}
    pairs = [(spelled.setdefault(spelling(name), name), name) for name in names]
    return [(first, second) for first, second in pairs if first != second]


def given_files(names: Sequence[Path]) -> tuple[Sequence[Path], Sequence[str]]:
    """Find the image files that are named or lie below a named folder.

    A named file may have any extension; in a folder, images are found by their extension. A name
    that does not exist is taken for a file: reading it says what is wrong.

    Returns:
        The files in the order given, those of a folder sorted; and notes on what was left out.

    Raises:
        GraceError: if a folder holds no images.
    """
    paths: list[Path] = []
    notes: list[str] = []
    for name in names:
        if not name.is_dir():
            paths.append(name)
            continue
        ignored: Ignored = []
        images = images_below(name, ignored)
        if not images:
            known = ", ".join(extension[1:] for extension in EXTENSIONS)
            only = next((f", only '{path}' ({why})" for path, why in ignored), "")
            raise GraceError(f"'{name}' holds no images ({known}){only}")
        for reason in dict.fromkeys(why for _, why in ignored if why != NO_IMAGE):
            left_out = [path for path, why in ignored if why == reason]
            notes.append(f"{len(left_out)} left out ({reason}), such as '{left_out[0]}'")
        paths += images
    return paths, notes


def names_in(lines: Iterable[bytes]) -> list[Path]:
    """Return the names that a list of files holds, one a line; blank lines are left out."""
    names = [os.fsdecode(line.rstrip(b"\r\n")) for line in lines]
    return [Path(name) for name in names if name.strip()]
