"""What is wrong with the images of an update, one check per kind of trouble.

Errors are what ``load_update`` refuses; warnings are what makes a poor learner; notes are what a
person may want to know.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.data.class_names import similar_names, spelling, twins
from grace.data.inspection import ImageFacts
from grace.data.survey import ClassFolder, Survey

Severity = Literal["error", "warning", "note"]


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to know about the images, and what to do about it."""

    severity: Severity
    text: str
    remedy: str


@final
@dataclass(frozen=True, kw_only=True)
class Expected:
    """What an update's images are for; without a model all but the channels is open."""

    channels: Literal[1, 3]
    image_size: int | None
    """Side in pixels of the learner's square."""
    class_names: Sequence[str]
    """Names of the classes it knows."""
    images: Mapping[bytes, str]
    """Class names of its own images by ``selection.pixel_keys``."""


def find(survey: Survey, expected: Expected) -> list[Finding]:
    """Make every check; the worst findings come first."""
    found = [
        *_layout(survey),
        *_names(survey),
        *_files(survey),
        *_duplicates(survey),
        *_sizes(survey, expected),
        *_amounts(survey),
        *_clashes(survey, expected),
        *_similar(survey, expected),
        *_known_images(survey, expected),
        *_kinds(survey, expected),
    ]
    order = ("error", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.severity))


def train_counts(survey: Survey) -> Mapping[str, int]:
    """Count the training images of each class that can be learned from."""
    counts = {folder.name: 0 for folder in survey.folders if not folder.is_test}
    for place, (file, _) in enumerate(survey.readable):
        if not file.is_test and place not in survey.duplicates.left_out:
            counts[file.class_name] += 1
    return counts


def _some(severity: Severity, what: str, items: Sequence[str], remedy: str) -> Iterator[Finding]:
    """Name the first five items and count the others; no finding without items."""
    if items:
        more = f" and {len(items) - 5} more" if len(items) > 5 else ""
        text = f"{what} ({len(items)}): {', '.join(items[:5])}{more}"
        yield Finding(severity=severity, text=text, remedy=remedy)


def _layout(survey: Survey) -> Iterator[Finding]:
    for refusal in survey.refusals:
        text, _, remedy = refusal.rpartition(": ")
        yield Finding(severity="error", text=text, remedy=remedy)
    if survey.parts is not None:
        yield from _some(
            "warning",
            "images outside the class folders, which are ignored",
            [survey.shown(path) for path in survey.parts.loose],
            "put them into the folders of their classes",
        )
        yield from _some(
            "warning",
            "folders beside train, which are ignored",
            [survey.shown(survey.root / name) for name in survey.parts.unused],
            "move class folders into train",
        )


def _names(survey: Survey) -> Iterator[Finding]:
    problems = [folder.problem for folder in survey.folders if folder.problem is not None]
    yield from _some("error", "refused class names", problems, "rename the folders")
    pairs: list[str] = []
    for is_test in (False, True):
        paths = {f.path.name: survey.shown(f.path) for f in survey.folders if f.is_test == is_test}
        pairs.extend(f"{paths[a]} and {paths[b]}" for a, b in twins(list(paths)))
    yield from _some("error", "two folders for one class", pairs, "merge or rename them")
    trained = {folder.name for folder in survey.folders if not folder.is_test}
    yield from _some(
        "error",
        "test classes without training images",
        [survey.shown(f.path) for f in survey.folders if f.is_test and f.name not in trained],
        "give them training images, or remove them",
    )


def _files(survey: Survey) -> Iterator[Finding]:
    def all_of(kind: Callable[[ClassFolder], Sequence[Path]]) -> list[str]:
        return [survey.shown(path) for folder in survey.folders for path in kind(folder)]

    closed = all_of(lambda folder: folder.found.closed)
    yield from _some("error", "folders that cannot be listed", closed, "allow them to be read")
    yield from _some(
        "error",
        "class folders without images",
        [survey.shown(folder.path) for folder in survey.folders if not folder.found.images],
        "add images (JPEG, PNG, WebP or BMP), or remove the folders",
    )
    yield from _some(
        "error",
        "unreadable images",
        [f"{survey.shown(file.path)} ({look.reason})" for file, look in survey.unreadable],
        "replace or remove them, or have unreadable images skipped",
    )
    links = all_of(lambda folder: folder.found.links)
    yield from _some(
        "warning",
        "links to folders, which are not followed",
        links,
        "move the images themselves into the class folders",
    )
    others = all_of(lambda folder: folder.found.others)
    yield from _some(
        "note",
        "files that are no images, which are ignored",
        others,
        "convert them to JPEG or PNG if they are to be learned",
    )


def _duplicates(survey: Survey) -> Iterator[Finding]:
    def path(place: int) -> str:
        return survey.shown(survey.readable[place][0].path)

    found = survey.duplicates
    yield from _some(
        "error",
        "images that are in two classes",
        [f"{path(first)} and {path(second)}" for first, second in found.shared],
        "remove the wrong one of each, or have duplicates skipped",
    )
    yield from _some(
        "error",
        "training images that are test images too",
        [f"{path(first)} and {path(second)}" for first, second in found.tested],
        "remove one of each, or have duplicates skipped",
    )
    yield from _some(
        "note",
        "further copies of images of the same class, which are used once",
        [path(place) for place in sorted(found.repeated)],
        "remove them at leisure",
    )


def _sizes(survey: Survey, expected: Expected) -> Iterator[Finding]:
    sizes = Counter(facts.size for _, facts in survey.readable)
    side = expected.image_size
    if side is None and len(sizes) > 1:
        yield from _some(
            "error",
            "different sizes in pixels",
            [f"{_by(size)} of {count} images" for size, count in sizes.most_common()],
            "give an image size, to which all are brought",
        )
    small = [
        f"{survey.shown(file.path)} ({_by(facts.size)})"
        for file, facts in survey.readable
        if side is not None and 2 * min(facts.size) < side
    ]
    yield from _some(
        "warning",
        f"images much smaller than the learner's {side}×{side} pixels",
        small,
        "give larger images if there are any: enlarging adds no detail",
    )


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


def _amounts(survey: Survey) -> Iterator[Finding]:
    counts = train_counts(survey)
    for least, most, remedy in (
        (0, 4, "add images: so few show little of what a class is"),
        (5, 19, "add images if there are any"),
    ):
        few = [f"'{name}' ({n})" for name, n in counts.items() if least <= n <= most]
        yield from _some("warning", f"classes with at most {most} images", few, remedy)
    used = {name: count for name, count in counts.items() if count > 0}
    if used and max(used.values()) > 10 * min(used.values()):
        large, small = max(used, key=lambda n: used[n]), min(used, key=lambda n: used[n])
        yield Finding(
            severity="warning",
            text=f"'{large}' has {used[large]} images, more than ten times as many as '{small}' "
            f"with {used[small]}",
            remedy="add images of the small classes, or limit the images per class",
        )


def _similar(survey: Survey, expected: Expected) -> Iterator[Finding]:
    names = list(dict.fromkeys(folder.name for folder in survey.folders))
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
            text=f"are '{name}' and '{other}' one class?"
            if is_new
            else f"is '{name}' the known class '{other}'?",
            remedy="merge the folders if so" if is_new else "rename the folder if so",
        )
    if len(pairs) > 5:
        yield Finding(
            severity="warning",
            text=f"{len(pairs) - 5} more pairs of class names look alike",
            remedy="settle the first five, then examine again",
        )


def _clashes(survey: Survey, expected: Expected) -> Iterator[Finding]:
    """Find new classes whose name a known one has in another spelling: an update refuses them."""
    known = {spelling(name): name for name in expected.class_names}
    names = {folder.name for folder in survey.folders if not folder.is_test}
    clashes = [
        f"'{name}' is the known class '{known[spelling(name)]}'"
        for name in sorted(names - set(expected.class_names))
        if spelling(name) in known
    ]
    yield from _some("error", "class names in another spelling", clashes, "rename the folders")


def _known_images(survey: Survey, expected: Expected) -> Iterator[Finding]:
    same: list[str] = []
    other: list[str] = []
    for file, facts in survey.readable:
        owner = expected.images.get(facts.key)
        if owner == file.class_name:
            same.append(survey.shown(file.path))
        elif owner is not None:
            other.append(f"{survey.shown(file.path)} ('{owner}')")
    yield from _some(
        "warning",
        "images that the model keeps for another class",
        other,
        "remove them, or move them to that class",
    )
    yield from _some(
        "note", "images that the model keeps already", same, "remove them: they add nothing"
    )


def _kinds(survey: Survey, expected: Expected) -> Iterator[Finding]:
    def shown(holds: Callable[[ImageFacts], bool]) -> list[str]:
        return [survey.shown(file.path) for file, facts in survey.readable if holds(facts)]

    grey = shown(lambda facts: facts.is_grey)
    if expected.channels == 3 and len(grey) < len(survey.readable):
        yield from _some(
            "note",
            "grey images among colour ones",
            grey,
            "see that no class is grey alone: that would tell it apart",
        )
    yield from _some(
        "note",
        "animated images, of which the first frame is used",
        shown(lambda facts: facts.is_animated),
        "give the frames as images if they are to be learned",
    )
    yield from _some(
        "note",
        "images turned upright as their camera recorded",
        shown(lambda facts: facts.is_rotated),
        "nothing, unless some look turned",
    )
