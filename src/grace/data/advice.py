"""Advice about readable images: few or small images, similar class names, known images.

Only one of these is an error: a class name that the learner knows in another spelling.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

from grace.data.class_names import similar_names, spelling
from grace.data.decoding import Kind
from grace.data.findings import Finding, shown, some
from grace.data.folder_tree import FolderTree, ImageFile
from grace.data.looks import Look


@final
@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the learner expects of images; without a learner only the channels are known."""

    channels: Literal[1, 3]
    image_size: int | None
    """Side in pixels of the learner's square."""
    class_names: Sequence[str]
    """Names of the classes it knows."""
    images: Mapping[bytes, str] = field(default_factory=dict)
    """Class names of its own images by ``selection.pixel_keys``."""


def advise(
    tree: FolderTree,
    readable: Sequence[tuple[ImageFile, Look]],
    counts: Mapping[str, int],
    expected: Expected,
) -> list[Finding]:
    """Return warnings and notes about readable images.

    Args:
        tree: the scanned folder.
        readable: its readable images with their properties.
        counts: number of usable training images of each class.
        expected: what the learner expects.
    """
    return [
        *_clashes(tree, expected),
        *_small(tree.root, readable, expected),
        *_amounts(counts),
        *_similar(tree, expected),
        *_known_images(tree.root, readable, expected),
        *_kinds(tree.root, readable, expected),
    ]


def _clashes(tree: FolderTree, expected: Expected) -> Iterator[Finding]:
    """Find new classes that are known in another spelling; an update refuses them."""
    known = {spelling(name): name for name in expected.class_names}
    clashes = [
        f"'{name}' is the known class '{known[spelling(name)]}'"
        for name in tree.class_names
        if name not in expected.class_names and spelling(name) in known
    ]
    yield from some("error", "class names in another spelling", clashes, "rename the folders")


def _small(
    root: Path, readable: Sequence[tuple[ImageFile, Look]], expected: Expected
) -> Iterator[Finding]:
    side = expected.image_size
    small = [
        f"{shown(file.path, root)} ({look.size[0]}×{look.size[1]})"
        for file, look in readable
        if side is not None and 2 * min(look.size) < side
    ]
    yield from some(
        "warning",
        f"images much smaller than the learner's {side}×{side} pixels",
        small,
        "give larger images if there are any: enlarging adds no detail",
    )


def _amounts(counts: Mapping[str, int]) -> Iterator[Finding]:
    # A class without any usable image is an error, which is found before.
    for least, most, remedy in (
        (1, 4, "add images: so few show little of what a class is"),
        (5, 19, "add images if there are any"),
    ):
        few = [f"'{name}' ({n})" for name, n in counts.items() if least <= n <= most]
        yield from some("warning", f"classes with at most {most} images", few, remedy)
    used = {name: count for name, count in counts.items() if count > 0}
    if used and max(used.values()) > 10 * min(used.values()):
        large, small = max(used, key=lambda n: used[n]), min(used, key=lambda n: used[n])
        yield Finding(
            severity="warning",
            what=f"'{large}' has {used[large]} images, more than ten times as many as '{small}' "
            f"with {used[small]}",
            remedy="add images of the small classes, or limit the images per class",
        )


def _similar(tree: FolderTree, expected: Expected) -> Iterator[Finding]:
    names = list(dict.fromkeys(folder.name for folder in tree.folders))
    known = set(expected.class_names)
    pairs = [
        (name, other) if other in known else (other, name)
        for name, other in similar_names(names, expected.class_names)
        if (name not in known or other not in known) and spelling(name) != spelling(other)
    ]
    # What may be a known class comes first.
    pairs.sort(key=lambda pair: known.isdisjoint(pair))
    for name, other in pairs[:5]:
        is_new = known.isdisjoint((name, other))
        yield Finding(
            severity="warning",
            what=f"are '{name}' and '{other}' one class?"
            if is_new
            else f"is '{name}' the known class '{other}'?",
            remedy="merge the folders if so" if is_new else "rename the folder if so",
        )
    if len(pairs) > 5:
        yield Finding(
            severity="warning",
            what=f"{len(pairs) - 5} more pairs of class names look alike",
            remedy="settle the first five, then examine again",
        )


def _known_images(
    root: Path, readable: Sequence[tuple[ImageFile, Look]], expected: Expected
) -> Iterator[Finding]:
    same: list[str] = []
    other: list[str] = []
    for file, look in readable if expected.images else ():
        owner = expected.images.get(look.key) if isinstance(look.key, bytes) else None
        if owner == file.class_name:
            same.append(shown(file.path, root))
        elif owner is not None:
            other.append(f"{shown(file.path, root)} ('{owner}')")
    yield from some(
        "warning",
        "images that the model keeps for another class",
        other,
        "remove them, or move them to that class",
    )
    yield from some(
        "note", "images that the model keeps already", same, "remove them: they add nothing"
    )


def _kinds(
    root: Path, readable: Sequence[tuple[ImageFile, Look]], expected: Expected
) -> Iterator[Finding]:
    def files(holds: Callable[[Kind], bool]) -> list[str]:
        return [shown(file.path, root) for file, look in readable if look.kind and holds(look.kind)]

    grey = files(lambda kind: kind.is_grey)
    if expected.channels == 3 and len(grey) < len(readable):
        yield from some(
            "note",
            "grey images among colour ones",
            grey,
            "see that no class has only grey images: its colour alone would identify it",
        )
    yield from some(
        "note",
        "animated images, of which the first frame is used",
        files(lambda kind: kind.is_animated),
        "give the frames as images if they are to be learned",
    )
    yield from some(
        "note",
        "images turned upright as their camera recorded",
        files(lambda kind: kind.is_rotated),
        "nothing, unless some look turned",
    )
