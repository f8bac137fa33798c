"""Find the image files that a user names: files, and folders to search. Imports no torch."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.base.errors import GraceError
from grace.data.folder_tree import EXTENSIONS, REFUSED_TEXT, files_below


@final
@dataclass(frozen=True)
class GivenFiles:
    """Image files in the order given, those of a folder sorted; and notes on what was left out."""

    paths: Sequence[Path]
    notes: Sequence[str]


def given_files(names: Sequence[Path]) -> GivenFiles:
    """Find the image files that are named or lie below a named folder.

    A named file may have any extension; in a folder, images are found by their extension. A name
    that does not exist is taken for a file: reading it says what is wrong.

    Args:
        names: files and folders.

    Raises:
        GraceError: if a folder holds no images.
    """
    paths: list[Path] = []
    notes: list[str] = []
    for name in names:
        if not name.is_dir():
            paths.append(name)
            continue
        found = files_below(name)
        notes += [f"folder '{path}' cannot be listed and was left out" for path in found.closed]
        notes += [f"'{path}' is a link to a folder and was not followed" for path in found.links]
        refused = f"{REFUSED_TEXT} ({len(found.refused)})" if found.refused else ""
        if refused:
            notes.append(f"'{name}' holds {refused}")
        if not found.images:
            known = ", ".join(extension[1:] for extension in EXTENSIONS)
            only = f", only {refused}" if refused else ""
            raise GraceError(f"'{name}' holds no images ({known}){only}")
        paths += found.images
    return GivenFiles(paths, notes)


def names_in(lines: Iterable[bytes]) -> list[Path]:
    """Return the names that a list of files holds, one a line; blank lines are left out."""
    names = [os.fsdecode(line.rstrip(b"\r\n")) for line in lines]
    return [Path(name) for name in names if name.strip()]
