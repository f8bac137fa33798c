"""Examine the images of an update without learning them. Imports no torch."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.base.errors import GraceError
from grace.base.words import counted
from grace.data.class_names import spelling
from grace.data.decoders import Look, look_at_all
from grace.data.decoding import MAX_PIXELS
from grace.data.findings import Finding, Judgement, Rules, judge_images, judge_layout
from grace.data.folder_tree import ImageFile, scan
from grace.settings.experiment import Fit


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
        return self.worded({})

    def worded(self, settings: Mapping[str, str]) -> str:
        """Return the verdict; ``settings`` as in ``GraceError.worded``."""
        first = self.findings[0] if self.findings else None
        if first is None or first.severity == "note":
            num_images = sum(count.train for count in self.classes.values())
            classes = counted(len(self.classes), "class", "classes")
            return f"Ready: {counted(num_images, 'image')} of {classes} can be learned."
        start = "Not ready" if first.severity == "error" else "Ready, but could be better"
        advice = first.error.advice(settings)
        return f"{start}: {first.text}; {advice}." if advice else f"{start}: {first.text}."


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
        *_clashes(tree.class_names, learnt),
        *_amounts({name: classes[name].train for name in tree.class_names}),
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


def _clashes(names: Sequence[str], learnt: Sequence[str]) -> Iterator[Finding]:
    """Find new classes that are known in another spelling; an update refuses them."""
    known = {spelling(name): name for name in learnt}
    clashes = [
        f"'{name}' is the known class '{known[spelling(name)]}'"
        for name in names
        if name not in learnt and spelling(name) in known
    ]
    if clashes:
        what, remedy = "class names in another spelling", "rename the folders"
        yield Finding(severity="error", what=what, where=clashes, remedy=remedy)


def _amounts(counts: Mapping[str, int]) -> Iterator[Finding]:
    # A class without any usable image is an error, which is found before.
    few = [f"'{name}' ({count})" for name, count in counts.items() if 0 < count < 5]
    if few:
        what, remedy = "classes with at most 4 images", "add images: so few show little of a class"
        yield Finding(severity="warning", what=what, where=few, remedy=remedy)


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
