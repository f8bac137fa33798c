"""Judge a folder of images: list its problems, each with what, where and what to do.

The doctor prints the list; code that loads images raises its first error. Imports no torch.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.base.errors import GraceError
from grace.base.words import counted, did_you_mean, printable
from grace.data.decoders import Look, look_at_all
from grace.data.decoding import Reading
from grace.data.folder_tree import FolderTree, ImageFile, scan, spelling, twins

Severity = Literal["error", "warning"]
"""Errors are refused; warnings may give poor accuracy."""
Looks = Sequence[Look | GraceError]
"""For each file its properties, or the error if it cannot be read."""


@final
@dataclass(frozen=True)
class Finding:
    """One problem of a folder of images, and what to do about it."""

    severity: Severity
    what: str
    where: Sequence[str]
    """The files, folders or names with the problem, each with its details."""
    remedy: str

    @property
    def text(self) -> str:
        """Problem and places on one line; at most five places."""
        if not self.where:
            return self.what
        more = f" and {len(self.where) - 5} more" if len(self.where) > 5 else ""
        return f"{self.what} ({len(self.where)}): {', '.join(self.where[:5])}{more}"


def _found(severity: Severity, what: str, where: Sequence[str], remedy: str) -> Iterator[Finding]:
    """Yield a problem if it is somewhere."""
    if where:
        yield Finding(severity, what, where, remedy)


def refuse_first(findings: Sequence[Finding], root: Path) -> None:
    """Raise the first finding that is an error; its place is ``root``."""
    for finding in findings:
        if finding.severity == "error":
            raise GraceError(finding.text, finding.remedy, where=printable(str(root)))


def sound_tree(root: Path, reading: Reading) -> tuple[FolderTree, list[str]]:
    """Scan a folder; return what it holds, and notes on its layout.

    Raises:
        GraceError: for the first thing that is wrong with folders or file names.
    """
    tree = scan(root)
    findings = judge_layout(tree, reading)
    refuse_first(findings, root)
    return tree, [finding.text for finding in findings]


def judge_layout(tree: FolderTree, reading: Reading) -> list[Finding]:
    """List the problems of folders and file names, before any image is read."""
    return [*_parts(tree), *_class_names(tree, reading), *_files(tree)]


def _parts(tree: FolderTree) -> Iterator[Finding]:
    unclear = [_shown(path, tree.root) for path in tree.unclear]
    remedy = (
        "for parts, put class folders and no images into 'train' and 'test'; for a class, put its "
        "images directly into its folder"
    )
    what = "folders that could be a class or a part of the images"
    yield from _found("error", what, unclear, remedy)
    filled = {folder.is_test for folder in tree.folders}
    for part, is_test in ((tree.train, False), (tree.test, True)):
        if part and is_test not in filled and not unclear:
            what = "no class folders"
            what += "" if part == tree.root else f" in {_shown(part, tree.root)}"
            remedy = "put the images of each class into a folder of its name"
            yield Finding("error", what, (), remedy)


def _class_names(tree: FolderTree, reading: Reading) -> Iterator[Finding]:
    refused = [folder.refusal.what for folder in tree.folders if folder.refusal is not None]
    yield from _found("error", "refused class names", refused, "rename the folders")
    train, test = (
        {folder.path.name: folder for folder in tree.folders if folder.is_test == is_test}
        for is_test in (False, True)
    )
    pairs = [
        f"{_shown(part[first].path, tree.root)} and {_shown(part[second].path, tree.root)}"
        for part in (train, test)
        for first, second in twins(list(part))
    ]
    yield from _found("error", "two folders for one class", pairs, "merge or rename them")
    for what, part, other in (
        ("test classes without training images", test, train),
        ("training classes without test images", train, test),
    ):
        if part is test or (test and reading.use != "learner"):
            names = [folder.name for folder in other.values()]
            lacking = [
                f"{_shown(folder.path, tree.root)}{did_you_mean(folder.name, names)}"
                for folder in part.values()
                if folder.name not in names
            ]
            yield from _found("error", what, lacking, "give them such images, or remove them")


def _files(tree: FolderTree) -> Iterator[Finding]:
    empty = [_shown(folder.path, tree.root) for folder in tree.folders if not folder.images]
    remedy = "add images (JPEG, PNG, WebP, BMP or TIFF), or remove the folders"
    yield from _found("error", "class folders without images", empty, remedy)
    others = [f"{_shown(path, tree.root)} ({why})" for path, why in tree.ignored]
    remedy = "put images into class folders, as JPEG or PNG"
    yield from _found("warning", "files and folders that are not used", others, remedy)


def _shown(path: Path, root: Path) -> str:
    """Return a file's path below ``root`` in quotes, on one line."""
    return f"'{printable(path.relative_to(root).as_posix())}'"


def judge_images(
    root: Path, files: Sequence[ImageFile], looks: Looks, reading: Reading
) -> tuple[list[Finding], Collection[int]]:
    """List the problems of image files: unreadable, duplicate, of different sizes.

    Args:
        root: folder of the files.
        files: N files of both parts.
        looks: their N properties or errors.
        reading: decides what is refused and what is left out.

    Returns:
        The problems, and the positions of the files that are not used.
    """
    shown = [_shown(file.path, root) for file in files]
    unreadable = {
        place: f"{shown[place]} ({printable(look.what)})"
        for place, look in enumerate(looks)
        if isinstance(look, GraceError)
    }
    skips = reading.skip_unreadable
    what = "unreadable images" + ", which are left out" * skips
    remedy = "replace or remove them" + ", or set data.skip_unreadable=true" * (not skips)
    findings = [*_found("warning" if skips else "error", what, [*unreadable.values()], remedy)]
    copies, duplicates = _judge_copies(files, looks, shown, reading)
    left_out = unreadable.keys() | duplicates
    findings += [*copies, *(_sizes(shown, looks) if reading.size is None else ())]
    # Classes without a usable image; a learner needs no test images.
    used = {(f.is_test, f.class_name) for place, f in enumerate(files) if place not in left_out}
    lost = sorted({(f.is_test, f.class_name) for f in files} - used)
    for is_test, part in ((False, "training"), (True, "test")):
        if not is_test or reading.use != "learner":
            names = [f"'{name}'" for own, name in lost if own == is_test]
            what = f"classes without usable {part} images"
            findings += _found("error", what, names, "add some")
    return findings, left_out


def _judge_copies(
    files: Sequence[ImageFile], looks: Looks, shown: Sequence[str], reading: Reading
) -> tuple[Iterator[Finding], set[int]]:
    """Find equal images; return the problems, and the positions that are left out for them.

    A learner leaves out further copies in a class, all copies of an image in two classes, and
    training images that are test images too; others leave out only these, and only if asked to.
    """
    is_learner, skips = reading.use == "learner", reading.skip_duplicates
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, look in enumerate(looks):
        if isinstance(look, Look):
            places[look.key].append(place)
    shared: list[tuple[int, int]] = []
    tested: list[tuple[int, int]] = []
    left_out: set[int] = set()
    for own in places.values():
        train, test = ([p for p in own if files[p].is_test == is_test] for is_test in (False, True))
        for part in (train, test):
            others = [p for p in part if files[p].class_name != files[part[0]].class_name]
            shared += [(part[0], place) for place in others]
            left_out.update((part if others else part[1:]) if is_learner else ())
        if train and test:
            tested.append((train[0], test[0]))
            left_out.update(train if is_learner or skips else ())

    def listed() -> Iterator[Finding]:
        skip, leaves = ", or set data.skip_duplicates=true", ", which are left out"
        for what, pairs, is_refused, can_skip in (
            ("images in two classes", shared, is_learner, is_learner),
            ("training images that are test images too", tested, reading.use != "benchmark", True),
        ):
            severity: Severity = "error" if is_refused and not skips else "warning"
            where = [f"{shown[first]} and {shown[second]}" for first, second in sorted(pairs)]
            remedy = "remove the wrong one of each" + skip * can_skip
            yield from _found(severity, what + leaves * (skips and can_skip), where, remedy)

    return listed(), left_out


def _sizes(shown: Sequence[str], looks: Looks) -> Iterator[Finding]:
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
        yield Finding("error", "different sizes in pixels", sizes, remedy)


@final
@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """Number of image files of one class; in both parts if no part is named."""

    train: int = 0
    """Training images that can be learned from: readable, duplicates left out."""
    test: int = 0
    """Test images, likewise."""
    unreadable: int = 0
    duplicates: int = 0
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

    @property
    def is_ready(self) -> bool:
        """The images can be learned as they are."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence: what to change first, or that the images are ready."""
        first = self.findings[0] if self.findings else None
        if first is None:
            num_images = sum(count.train for count in self.classes.values())
            classes = counted(len(self.classes), "class", "classes")
            return f"Ready: {counted(num_images, 'image')} of {classes} can be learned."
        start = "Not ready" if first.severity == "error" else "Ready, but could be better"
        return f"{start}: {first.text}; {first.remedy}."


def examine(
    root: Path, reading: Reading, known_classes: Sequence[str] | None = None
) -> Examination:
    """Examine the images of an update; pixels are not kept in memory.

    ``known_classes`` are the names of the learner's classes; ``None``: there is no learner.

    Raises:
        GraceError: if ``root`` is not a folder. Every other problem is a finding.
    """
    tree = scan(root)
    files = tree.files
    found = look_at_all([file.path for file in files], reading)
    looks = [own if isinstance(own, GraceError) else own[0] for own in found]
    judged, left_out = judge_images(root, files, looks, reading)
    names = {folder.name for folder in tree.folders}
    counts: dict[str, Counter[str]] = {name: Counter() for name in sorted(names)}
    for place, (file, look) in enumerate(zip(files, looks, strict=True)):
        kind = "test" if file.is_test else "train"
        if place in left_out:
            kind = "duplicates" if isinstance(look, Look) else "unreadable"
        counts[file.class_name][kind] += 1
    learnt = [unicodedata.normalize("NFC", name) for name in known_classes or ()]
    numbers = {name: counts[name]["train"] for name in tree.class_names}
    findings = [*judge_layout(tree, reading), *judged, *_advice(numbers, learnt)]
    return Examination(
        classes={
            name: ClassCount(**count, is_new=None if known_classes is None else name not in learnt)
            for name, count in counts.items()
        },
        findings=sorted(findings, key=lambda finding: finding.severity),
        num_images=len(files),
    )


def _advice(counts: Mapping[str, int], learnt: Sequence[str]) -> Iterator[Finding]:
    """Find new classes that are known in another spelling, which is refused, and small classes."""
    known = {spelling(name): name for name in learnt}
    clashes = [
        f"'{name}' is the known class '{known[spelling(name)]}'"
        for name in counts
        if name not in learnt and spelling(name) in known
    ]
    yield from _found("error", "class names in another spelling", clashes, "rename the folders")
    # A class without any usable image is an error, which is found before.
    few = [f"'{name}' ({count})" for name, count in counts.items() if 0 < count < 5]
    remedy = "add images: so few show little of a class"
    yield from _found("warning", "classes with at most 4 images", few, remedy)
