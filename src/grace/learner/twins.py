"""Twins: what a saved version answers with, as an ONNX graph in the user's cache. Torch-free.

Importing torch takes longer than all else that one prediction needs. A twin is derived data: it is
named by the hash of its version's document, and so of the objects that the document names, and it
holds a hash of its own bytes. If anything is wrong with it, it counts as absent. It lies outside
the learner, in a folder that only the user can write: learners of strangers bring no twins.

In all functions ``document`` is the content of the file of the version's document.
"""

import hashlib
import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import final

from pydantic import ValidationError

import grace
from grace.base import atomic, strict_json
from grace.base.errors import DamagedError
from grace.base.files import read_small
from grace.base.machine import cache_folder
from grace.learner.accuracies import Strict

FOLDER = "twins"
"""In the cache folder: a file for each version. If one is deleted, it is made again."""
VARIABLE = "GRACE_TWINS"
"""Environment variable; at 0 no twins are made or used."""
FORMAT = 2
"""Part of their names: raise it when the same version shall get another twin."""
MAX_BYTES = 1 << 28
"""The largest file that is written or read."""
MAX_ALL_BYTES, MAX_FILES = 1 << 30, 32
"""Bytes and files of all twins together; those not used for longest are removed."""


@final
class Twin(Strict):
    """What a twin knows beside its graph; see ``grace.learner.prediction.Answerer``."""

    score_name: str
    familiarities: tuple[float, ...]
    left_out: tuple[float, ...]


def read(document: bytes) -> tuple[Twin, bytes] | None:
    """Return a version's twin and its graph; ``None``: there is none that can be used."""
    path = _path(document)
    if path is None or not _is_private(path.parent) or not os.path.lexists(path):
        return None
    try:
        data = read_small(path, f"'{path}'", MAX_BYTES)
        digest, _, rest = data.partition(b"\n")
        if digest.decode("ascii", "replace") != _hash(rest):
            raise DamagedError(f"'{path}' is damaged")
        head, _, graph = rest.partition(b"\n")
        twin = Twin.model_validate(strict_json.parse(head, f"'{path}'")) if graph else None
    except (DamagedError, OSError, ValidationError):
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)
    return None if twin is None else (twin, graph)


def is_missing(document: bytes) -> bool:
    """Return ``True`` if a version has no twin and could get one; create the folder for it."""
    path = _path(document)
    if path is None or os.path.lexists(path):
        return False
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return _is_private(path.parent) and os.access(path.parent, os.W_OK)


def write(document: bytes, twin: Twin | None, graph: bytes = b"") -> None:
    """Keep a version's twin, and remove those that were not used for longest.

    Args:
        document: see this module.
        twin: ``None``: none can be made, which the next prediction shall not try again.
        graph: an ONNX graph.

    Raises:
        OSError: if it cannot be written.
    """
    path = _path(document)
    assert path is not None
    head = b"" if twin is None else strict_json.dump(twin.model_dump()).replace(b"\n", b" ")
    rest = head + b"\n" + graph
    data = _hash(rest).encode() + b"\n" + rest
    if len(data) > MAX_BYTES:
        write(document, None)
        return
    atomic.write_bytes(path, data)
    _remove_oldest(path.parent)


def remove(document: bytes) -> None:
    """Remove a version's twins, those of other versions of grace and torch among them."""
    folder = _folder()
    if folder is not None:
        with suppress(OSError):
            for path in folder.glob(f"{_hash(document)}-*"):
                path.unlink(missing_ok=True)


def _path(document: bytes) -> Path | None:
    """Return where a version's twin lies; ``None``: the user wants no twins, or has no home."""
    folder = _folder()
    if folder is None or os.environ.get(VARIABLE) == "0":
        return None
    try:
        made_by = f"{FORMAT} {grace.__version__} {version('torch')}"
    except PackageNotFoundError:
        return None
    return folder / f"{_hash(document)}-{_hash(made_by.encode())[:16]}.twin"


def _folder() -> Path | None:
    """Return the folder of all twins; ``None``: the user has no home."""
    try:
        return cache_folder(FOLDER)
    except RuntimeError:
        return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_private(folder: Path) -> bool:
    """Return ``True`` for a folder that belongs to the user, and that nobody else can write."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return sys.platform == "win32" or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _is_own(path: Path) -> bool:
    """Return ``True`` for a twin or an unfinished one: the folder may be a link to another."""
    return path.suffix == ".twin" or atomic.is_leftover(path)


def _remove_oldest(folder: Path) -> None:
    """Remove what was not used for longest, unfinished files of killed processes among them."""
    with suppress(OSError):
        found = sorted(
            ((own.stat(), own) for own in folder.iterdir() if _is_own(own)),
            key=lambda own: -own[0].st_mtime,
        )
        total = 0
        for count, (status, own) in enumerate(found, start=1):
            total += status.st_size
            if count > MAX_FILES or total > MAX_ALL_BYTES:
                own.unlink(missing_ok=True)
