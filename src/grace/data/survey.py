"""What lies in the folder of an update, good and bad, before anybody judges it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.data.class_names import class_name
from grace.data.folder_tree import FoundFiles, class_folders, files_below, folders_in
from grace.data.inspection import ImageFacts, Unreadable, inspect_images
from grace.data.selection import duplicates
from grace.data.update_folder import copies
from grace.data.update_parts import UpdateParts, update_parts
from grace.text.escaping import printable
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True, kw_only=True)
class ClassFolder:
    """A class folder of one part."""

    path: Path
    name: str
    """The class's name, or where that is refused, its folder's with escapes."""
    problem: str | None
    """Why the name is refused."""
    is_test: bool
    found: FoundFiles


@final
@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """An image file of a class, readable or not."""

    path: Path
    class_name: str
    is_test: bool


@final
@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Images that are the same, by their positions among the readable ones."""

    repeated: Collection[int]
    """Further copies of an image of the same class and part."""
    shared: Sequence[tuple[int, int]]
    """Pairs of one image in two classes of a part."""
    tested: Sequence[tuple[int, int]]
    """Pairs (training image, test image) of one image."""
    left_out: Collection[int]
    """What ``load_update`` would leave out."""


@final
@dataclass(frozen=True, kw_only=True)
class Survey:
    """Everything in the folder of an update."""

    root: Path
    parts: UpdateParts | None
    """None where the layout is refused."""
    refusals: Sequence[str]
    """Why a part's layout is refused; the remedy stands after the last colon."""
    folders: Sequence[ClassFolder]
    readable: Sequence[tuple[ImageFile, ImageFacts]]
    unreadable: Sequence[tuple[ImageFile, Unreadable]]
    duplicates: Duplicates

    def shown(self, path: Path) -> str:
        """Return a file's name below the folder, quoted, on one line."""
        return f"'{printable(path.relative_to(self.root).as_posix())}'"


def survey_update(root: Path, channels: Literal[1, 3], image_size: int | None) -> Survey:
    """Look at every folder and file of an update's images.

    Args:
        root: folder of the images, laid out as for ``load_update``.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the learner's square; none without a learner.

    Raises:
        ValueError: if ``root`` is no folder; nothing inside it is too bad to be told.
    """
    if not root.is_dir():
        raise GraceError(
            f"'{printable(str(root))}' is not a folder", "give the folder of the images"
        )
    refusals: list[str] = []
    folders: list[ClassFolder] = []
    parts: UpdateParts | None = None
    try:
        parts = update_parts(root)
    except GraceError as error:
        refusals.append(printable(str(error)))
    both = [] if parts is None else [(parts.train, False), (parts.test, True)]
    for part, is_test in both:
        if part is None:
            continue
        try:
            # The second one raises, and says what is missing.
            names = folders_in(part) or class_folders(part)
        except GraceError as error:
            refusals.append(printable(str(error)))
            continue
        own = [_class_folder(part / name, is_test) for name in names]
        folders.extend(sorted(own, key=lambda folder: folder.name))
    readable, unreadable = _images(folders, channels, image_size)
    return Survey(
        root=root,
        parts=parts,
        refusals=refusals,
        folders=folders,
        readable=readable,
        unreadable=unreadable,
        duplicates=_duplicates(readable),
    )


def _class_folder(path: Path, is_test: bool) -> ClassFolder:
    problem = None
    try:
        name = class_name(path.name)
    except GraceError as error:
        name = printable(path.name)
        problem = str(error).rpartition(": ")[0].removeprefix("the class name ")
    return ClassFolder(
        path=path, name=name, problem=problem, is_test=is_test, found=files_below(path)
    )


def _images(
    folders: Sequence[ClassFolder], channels: Literal[1, 3], image_size: int | None
) -> tuple[list[tuple[ImageFile, ImageFacts]], list[tuple[ImageFile, Unreadable]]]:
    files = [
        ImageFile(path=path, class_name=folder.name, is_test=folder.is_test)
        for folder in folders
        for path in sorted(folder.found.images)
    ]
    looks = inspect_images([file.path for file in files], channels, image_size)
    both = list(zip(files, looks, strict=True))
    return (
        [(file, look) for file, look in both if isinstance(look, ImageFacts)],
        [(file, look) for file, look in both if isinstance(look, Unreadable)],
    )


def _duplicates(readable: Sequence[tuple[ImageFile, ImageFacts]]) -> Duplicates:
    """Find copies as ``load_update`` does: within each part, then of test images."""
    keys = [facts.key for _, facts in readable]
    repeated: set[int] = set()
    shared: list[tuple[int, int]] = []
    kept: list[list[int]] = []
    for is_test in (False, True):
        own = [place for place, (file, _) in enumerate(readable) if file.is_test == is_test]
        again, twofold = copies(
            [keys[place] for place in own], [readable[place][0].class_name for place in own]
        )
        repeated.update(own[place] for place in again)
        shared.extend((own[first], own[second]) for first, second in twofold)
        spoilt = {keys[own[first]] for first, _ in twofold}
        kept.append([p for p in own if p not in repeated and keys[p] not in spoilt])
    train, test = kept
    pairs = duplicates([keys[place] for place in train], [keys[place] for place in test])
    tested = [(train[first], test[second]) for first, second in pairs]
    used = {*train, *test} - {first for first, _ in tested}
    return Duplicates(
        repeated=repeated,
        shared=shared,
        tested=tested,
        left_out=set(range(len(readable))) - used,
    )
