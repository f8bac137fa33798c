"""Find the image files that a user names: files, and folders to search. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.data.folder_tree import files_below
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True)
class GivenFiles:
    """Image files in the order given, those of a folder sorted; and notes on what was left out."""

    paths: Sequence[Path]
    notes: Sequence[str]


def given_files(names: Sequence[Path]) -> GivenFiles:
    """Find the image files that are named or lie below a named folder.

    A named file may have any extension; in a folder, images are found by their extension.

    Raises:
        GraceError: if a name is neither a file nor a folder, or a folder holds no images.
    """
    paths: list[Path] = []
    notes: list[str] = []
    for name in names:
        if name.is_file():
            paths.append(name)
            continue
        if not name.is_dir():
            raise GraceError(f"there is no image or folder '{name}'")
        found = files_below(name)
        notes += [f"folder '{path}' cannot be listed and was left out" for path in found.closed]
        notes += [f"'{path}' is a link to a folder and was not followed" for path in found.links]
        if not found.images:
            raise GraceError(f"'{name}' holds no images (jpg, jpeg, png, webp, bmp)")
        paths += found.images
    return GivenFiles(paths, notes)
