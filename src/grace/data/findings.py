"""Judge a folder of images: list its problems, each with what, where and what to do.

The doctor prints the list; code that loads images raises its first error. Imports no torch.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.base.errors import GraceError
from grace.base.words import counted, did_you_mean, printable
from grace.data.decoders import Look, look_at_all
from grace.data.decoding import MAX_PIXELS
from grace.data.folder_tree import (
    NO_IMAGE,
    FolderTree,
    ImageFile,
    scan,
    spelling,
    twins,
)
from grace.settings.experiment import Fit

Severity = Literal["error", "warning", "note"]


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem of a folder of images, and what to do about it."""

    severity: Severity
    """Errors are refused; warnings may give poor accuracy; notes are for information."""
    what: str
    where: Sequence[str] = ()
    """The files, folders or names with the problem, each with its details."""
    remedy: str

    @property
    def text(self) -> str:
        """Problem and places on one line; at most five places."""
        if not self.where:
            return self.what
        more = f" and {len(self.where) - 5} more" if len(self.where) > 5 else ""
        return f"{self.what} ({len(self.where)}): {', '.join(self.where[:5])}{more}"

    @property
    def error(self) -> GraceError:
        """The finding as an error."""
        return GraceError(self.text, self.remedy)


@final
@dataclass(frozen=True, kw_only=True)
class Rules:
    """Decides which problems are refused and which files are left out.

    ``use`` says what the images are for. A *learner* uses each image once and refuses an image with
    two classes. An *experiment* measures a data set as it is: copies among the training images are
    only counted, but test images among them are refused, because they would falsify the accuracy.
    A *benchmark* only counts these too, because published results include them.
    """

    use: Literal["learner", "experiment", "benchmark"] = "learner"
    skip_unreadable: bool = False
    """Leave unreadable images out instead of refusing them."""
    skip_duplicates: bool = False
    """Leave duplicates out instead of refusing them; in a benchmark, training images that are test
    images too."""
    image_size: int | None = None
    """Side in pixels of the square made of each image; ``None``: all must have one size."""
    fit: Fit = "crop"
    """How an image becomes a square."""
    max_pixels: int = MAX_PIXELS
    """An image with more pixels is unreadable."""


def refuse_first(findings: Sequence[Finding], root: Path) -> None:
    """Raise the first finding that is an error; its place is ``root``."""
    for finding in findings:
        if finding.severity == "error":
            raise finding.error.found_in(printable(str(root)))


_Row = tuple[Severity, str, Sequence[str], str]
"""Severity, problem, places (none: no finding) and remedy."""


def _findings(rows: Iterable[_Row]) -> list[Finding]:
    return [
        Finding(severity=severity, what=what, where=where, remedy=remedy)
        for severity, what, where, remedy in rows
        if where
    ]


def judge_layout(tree: FolderTree, rules: Rules) -> list[Finding]:
    """List the problems of folders and file names, before any image is read."""
    return [*_parts(tree), *_findings(_names(tree, rules)), *_findings(_files(tree))]


def _parts(tree: FolderTree) -> Iterator[Finding]:
    def named(paths: Sequence[Path]) -> list[str]:
        return [_shown(path, tree.root) for path in paths]

    unclear = "folders that could be a class or a part of the images"
    apart = (
        "for parts, put class folders and no images into 'train' and 'test'; for a class, put its "
        "images directly into its folder"
    )
    lists = "folders that cannot be listed"
    yield from _findings(
        [
            ("error", unclear, named(tree.unclear), apart),
            ("error", lists, named(tree.closed), "allow them to be read"),
        ]
    )
    tested = {folder.is_test for folder in tree.folders}
    for part, is_test in ((tree.train, False), (tree.test, True)):
        if (
            part is not None
            and is_test not in tested
            and not tree.unclear
            and part not in tree.closed
        ):
            place = "" if part == tree.root else f" in {_shown(part, tree.root)}"
            loose = sum(path.parent == part for path, _ in tree.ignored if path.is_file())
            only = f", only {counted(loose, 'image')}" if loose else ""
            remedy = "put the images of each class into a folder of its name"
            what = f"no class folders{place}{only}"
            yield Finding(severity="error", what=what, remedy=remedy)


def _names(tree: FolderTree, rules: Rules) -> Iterator[_Row]:
    refused = [folder.refusal.what for folder in tree.folders if folder.refusal is not None]
    yield "error", "refused class names", refused, "rename the folders"
    train, test = (
        {folder.path.name: folder for folder in tree.folders if folder.is_test == is_test}
        for is_test in (False, True)
    )
    pairs = [
        f"{_shown(part[first].path, tree.root)} and {_shown(part[second].path, tree.root)}"
        for part in (train, test)
        for first, second in twins(list(part))
    ]
    yield "error", "two folders for one class", pairs, "merge or rename them"
    remedy = "give them such images, or remove them"
    for what, part, other in (
        ("test classes without training images", test, train),
        ("training classes without test images", train, test),
    ):
        if part is test or (test and rules.use != "learner"):
            names = [folder.name for folder in other.values()]
            lacking = [
                f"{_shown(folder.path, tree.root)}{did_you_mean(folder.name, names)}"
                for folder in part.values()
                if folder.name not in names
            ]
            yield "error", what, lacking, remedy


def _files(tree: FolderTree) -> Iterator[_Row]:
    empty = [_shown(folder.path, tree.root) for folder in tree.folders if not folder.found.images]
    add = "add images (JPEG, PNG, WebP, BMP or TIFF), or remove the folders"
    yield "error", "class folders without images", empty, add
    odd = [f"{_shown(path, tree.root)} ({why})" for path, why in tree.ignored if why != NO_IMAGE]
    yield (
        "warning",
        "files and folders that are not used",
        odd,
        "put images into class folders",
    )
    others = [_shown(path, tree.root) for path, why in tree.ignored if why == NO_IMAGE]
    convert = "convert them to JPEG or PNG if they are to be learned"
    yield "note", "files that are no images, which are ignored", others, convert


def _shown(path: Path, root: Path) -> str:
    """Return a file's path below ``root`` in quotes, on one line."""
    return f"'{printable(path.relative_to(root).as_posix())}'"


@final
@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Problems of images, and the files that are left out because of them."""

    findings: Sequence[Finding]
    left_out: Collection[int]
    """Positions of the files that are not used: unreadable ones and duplicates."""
    duplicates: Collection[int]
    """Positions of the duplicates among them."""


def judge_images(
    root: Path, files: Sequence[ImageFile], looks: Sequence[Look | GraceError], rules: Rules
) -> Judgement:
    """List the problems of image files: unreadable, duplicate, of different sizes.

    Args:
        root: folder of the files.
        files: N files of both parts.
        looks: for each file, its properties, or the error if it cannot be read.
        rules: decides what is refused and what is left out.
    """
    shown = [_shown(file.path, root) for file in files]
    copies = _Copies(files, looks)
    duplicates = copies.left_out(rules)
    unreadable = {
        place: f"{shown[place]} ({printable(look.what)})"
        for place, look in enumerate(looks)
        if isinstance(look, GraceError)
    }
    left_out = {*unreadable, *duplicates}
    skips = rules.skip_unreadable
    rows: list[_Row] = [
        (
            "warning" if skips else "error",
            "unreadable images" + (", which are left out" if skips else ""),
            list(unreadable.values()),
            "replace or remove them" + ", or set data.skip_unreadable=true" * (not skips),
        ),
        *_duplicates(shown, copies, rules),
        *(_sizes(shown, looks) if rules.image_size is None else ()),
        *_lost(files, left_out, rules),
    ]
    return Judgement(findings=_findings(rows), left_out=left_out, duplicates=duplicates)


@final
class _Copies:
    """Equal images, by their positions among the files."""

    def __init__(self, files: Sequence[ImageFile], looks: Sequence[Look | GraceError]) -> None:
        self.repeated: list[int] = []
        """Further copies of an image of the same class and part."""
        self.shared: list[tuple[int, int]] = []
        """Pairs of one image in two classes of a part."""
        self.tested: list[tuple[int, int]] = []
        """Pairs (training image, test image) of one image."""
        self._superfluous: set[int] = set()
        """Further copies in a class, all copies of an image in two classes, and training images
        that are test images too, unless the test images are superfluous themselves."""
        self._leaked: set[int] = set()
        """All training images that are test images too."""
        places: dict[Hashable, list[int]] = defaultdict(list)
        for place, look in enumerate(looks):
            if isinstance(look, Look):
                places[look.key].append(place)
        for own in places.values():
            self._add(files, own)
        for found in (self.repeated, self.shared, self.tested):
            found.sort()

    def _add(self, files: Sequence[ImageFile], own: Sequence[int]) -> None:
        train, test = ([p for p in own if files[p].is_test == is_test] for is_test in (False, True))
        for part in (train, test):
            others = [p for p in part if files[p].class_name != files[part[0]].class_name]
            self.shared += [(part[0], place) for place in others]
            self.repeated += [] if others else part[1:]
            self._superfluous.update(part if others else part[1:])
        is_tested = bool(test) and test[0] not in self._superfluous
        self._superfluous.update(train if is_tested else ())
        self._leaked.update(train if test else ())
        self.tested += [(train[0], place) for place in (test[:1] if is_tested else test) if train]

    def left_out(self, rules: Rules) -> Collection[int]:
        """Return the positions that are not used, refused ones included."""
        if rules.use == "learner":
            return self._superfluous
        return self._leaked if rules.skip_duplicates else ()


def _duplicates(shown: Sequence[str], copies: _Copies, rules: Rules) -> Iterator[_Row]:
    def pairs(found: Sequence[tuple[int, int]]) -> list[str]:
        return [f"{shown[first]} and {shown[second]}" for first, second in found]

    is_learner, skips = rules.use == "learner", rules.skip_duplicates
    skip = ", or set data.skip_duplicates=true"
    severity: Severity = "error" if is_learner and not skips else "warning"
    what = "images in two classes" + (", which are left out" if is_learner and skips else "")
    remedy = "remove the wrong one of each" + skip * is_learner
    yield severity, what, pairs(copies.shared), remedy
    severity = "error" if rules.use != "benchmark" and not skips else "warning"
    what = "training images that are test images too" + (", which are left out" if skips else "")
    yield severity, what, pairs(copies.tested), f"remove one of each{skip}"
    what = "further copies of images of the same class"
    what += ", which are used once" if is_learner else ""
    yield "note", what, [shown[at] for at in copies.repeated], "remove them if you like"


def _sizes(shown: Sequence[str], looks: Sequence[Look | GraceError]) -> Iterator[_Row]:
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name, look in zip(shown, looks, strict=True):
        if isinstance(look, Look):
            found[look.size].append(name)
    sizes = [
        f"{width}×{height} of {counted(len(own), 'image')}, such as {own[0]}"
        for (width, height), own in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    if len(sizes) > 1:
        remedy = "make them alike, or set data.image_size"
        yield "error", "different sizes in pixels", sizes, remedy


def _lost(files: Sequence[ImageFile], left_out: Collection[int], rules: Rules) -> Iterator[_Row]:
    """Find classes without a usable image; a learner needs no test images."""
    used = {(f.is_test, f.class_name) for place, f in enumerate(files) if place not in left_out}
    lost = sorted({(f.is_test, f.class_name) for f in files} - used)
    for is_test, part in ((False, "training"), (True, "test")):
        if not is_test or rules.use != "learner":
            names = [f"'{name}'" for own, name in lost if own == is_test]
            yield "error", f"classes without usable {part} images", names, "add some"


@final
@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """Number of image files of one class; in both parts if no part is named."""

    train: int
    """Training images that can be learned from: readable, duplicates left out."""
    test: int
    """Test images, likewise."""
    unreadable: int
    duplicates: int
    """Readable images that are left out because the folder has an equal one."""
    is_new: bool | None
    """The learner does not know the class; ``None``: there is no learner."""


@final
@dataclass(frozen=True, kw_only=True)
class Examination:
    """The result of examining the images of an update."""

    classes: Mapping[str, ClassCount]
    """By class name, sorted."""
    findings: Sequence[Finding]
    """The worst first."""
    num_images: int
    """Image files in class folders, readable or not."""
    smallest: tuple[int, int] | None
    """Width and height of the readable image with the fewest pixels; ``None``: no image."""
    largest: tuple[int, int] | None
    """Width and height of the readable image with the most pixels."""

    @property
    def is_ready(self) -> bool:
        """The images can be learned as they are."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence: what to change first, or that the images are ready."""
        first = self.findings[0] if self.findings else None
        if first is None or first.severity == "note":
            num_images = sum(count.train for count in self.classes.values())
            classes = counted(len(self.classes), "class", "classes")
            return f"Ready: {counted(num_images, 'image')} of {classes} can be learned."
        start = "Not ready" if first.severity == "error" else "Ready, but could be better"
        return f"{start}: {first.text}{f'; {first.remedy}' * bool(first.remedy)}."


def examine(
    root: Path,
    *,
    known_classes: Sequence[str] | None = None,
    channels: Literal[1, 3] = 3,
    image_size: int | None = None,
    max_pixels: int = MAX_PIXELS,
    fit: Fit = "crop",
    skip_unreadable: bool = False,
    skip_duplicates: bool = False,
) -> Examination:
    """Examine the images of an update; pixels are not kept in memory.

    ``known_classes`` are the names of the learner's classes (``None``: there is no learner); the
    other arguments are those of ``load_update``.

    Raises:
        GraceError: if ``root`` is not a folder. Every other problem is a finding.
    """
    rules = Rules(
        skip_unreadable=skip_unreadable,
        skip_duplicates=skip_duplicates,
        image_size=image_size,
        max_pixels=max_pixels,
        fit=fit,
    )
    tree = scan(root)
    files = [*sorted(tree.files(False)), *sorted(tree.files(True))]
    found = look_at_all(
        [file.path for file in files],
        channels=channels,
        image_size=image_size,
        max_pixels=max_pixels,
        fit=fit,
    )
    looks = [own if isinstance(own, GraceError) else own[0] for own in found]
    judged = judge_images(root, files, looks, rules)
    learnt = [unicodedata.normalize("NFC", name) for name in known_classes or ()]
    names = sorted({folder.name for folder in tree.folders})
    known = None if known_classes is None else learnt
    classes = _class_counts(names, files, looks, judged, known)
    findings = [
        *judge_layout(tree, rules),
        *judged.findings,
        *_findings(_advice({name: classes[name].train for name in tree.class_names}, learnt)),
    ]
    order = ("error", "warning", "note")
    readable = [look for look in looks if isinstance(look, Look)]
    sizes = sorted({look.size for look in readable}, key=lambda size: (size[0] * size[1], size))
    return Examination(
        classes=classes,
        findings=sorted(findings, key=lambda finding: order.index(finding.severity)),
        num_images=len(files),
        smallest=sizes[0] if sizes else None,
        largest=sizes[-1] if sizes else None,
    )


def _advice(counts: Mapping[str, int], learnt: Sequence[str]) -> Iterator[_Row]:
    """Find new classes that are known in another spelling, which is refused, and small classes."""
    known = {spelling(name): name for name in learnt}
    clashes = [
        f"'{name}' is the known class '{known[spelling(name)]}'"
        for name in counts
        if name not in learnt and spelling(name) in known
    ]
    yield "error", "class names in another spelling", clashes, "rename the folders"
    # A class without any usable image is an error, which is found before.
    few = [f"'{name}' ({count})" for name, count in counts.items() if 0 < count < 5]
    remedy = "add images: so few show little of a class"
    yield "warning", "classes with at most 4 images", few, remedy


def _class_counts(
    names: Sequence[str],
    files: Sequence[ImageFile],
    looks: Sequence[Look | GraceError],
    judged: Judgement,
    known: Sequence[str] | None,
) -> dict[str, ClassCount]:
    """Count the files of each class; ``known``: names of the learner's classes."""
    counts = {kind: Counter[str]() for kind in ("train", "test", "unreadable", "duplicates")}
    for place, (file, look) in enumerate(zip(files, looks, strict=True)):
        if place not in judged.left_out:
            counts["test" if file.is_test else "train"][file.class_name] += 1
        counts["unreadable"][file.class_name] += not isinstance(look, Look)
        counts["duplicates"][file.class_name] += place in judged.duplicates
    return {
        name: ClassCount(
            **{kind: count[name] for kind, count in counts.items()},
            is_new=None if known is None else name not in known,
        )
        for name in names
    }
