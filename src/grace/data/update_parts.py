"""Where the classes of an update's images lie: in one folder, or in train/ beside test/."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.data.folder_tree import folders_in, loose_images, splits
from grace.text.escaping import printable
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True, kw_only=True)
class UpdateParts:
    """The folders that hold class folders, and what lies beside them unused."""

    train: Path
    test: Path | None
    loose: Sequence[Path]
    """Images outside the class folders."""
    unused: Sequence[str]
    """Folders beside train/ and test/."""

    def notes(self) -> list[str]:
        """Say how much is not used."""
        notes = []
        if self.loose:
            notes.append(f"{len(self.loose)} images outside class folders were ignored")
        if self.unused:
            names = ", ".join(f"'{printable(name)}'" for name in self.unused)
            notes.append(f"{len(self.unused)} folders beside train were ignored: {names}")
        return notes


def update_parts(root: Path) -> UpdateParts:
    """Find the parts of an update's images.

    Raises:
        ValueError: if ``root`` is no folder or cannot be listed, or a folder could be a part as
            well as a class.
    """
    if not root.is_dir():
        raise GraceError(f"'{root}' is not a folder", "give the folder of the new images")
    train, test = splits(root)
    names = folders_in(root)
    if train != root:
        used = [train] if test is None else [train, test]
        loose = [*loose_images(root), *(loose_images(test) if test is not None else [])]
        unused = [name for name in names if not any(part.samefile(root / name) for part in used)]
        return UpdateParts(train=train, test=test, loose=loose, unused=unused)
    _check_not_parts(root, names)
    return UpdateParts(train=root, test=None, loose=loose_images(root), unused=())


def _check_not_parts(root: Path, names: Sequence[str]) -> None:
    """Refuse class folders that look like parts: images of many classes would become one class."""
    for name in names:
        if name.casefold() not in ("train", "test", "val", "validation"):
            continue
        if folders_in(root / name):
            raise GraceError(
                f"folder '{root / name}' could be a class or a part of the images",
                f"for parts, put class folders and no images into '{root / 'train'}' and "
                f"'{root / 'test'}'; "
                "for a class, put its images directly into its folder",
            )
