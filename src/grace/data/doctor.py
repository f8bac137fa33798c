"""Examine the images of an update without learning them."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

from grace.data.advice import Expected, advise
from grace.data.findings import Finding, Rules, judge_images, judge_layout
from grace.data.folder_tree import scan
from grace.data.looks import Look, decoding_threads, look_at
from grace.text.refusals import GraceError


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
    modes: Mapping[str, int]
    """Number of readable images by PIL's name of the pixel format, the most frequent first."""

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
            return f"Ready: {num_images} images of {len(self.classes)} classes can be learned."
        start = "Not ready" if first.severity == "error" else "Ready, but could be better"
        stop = "" if first.text.endswith("?") else ";"
        return f"{start}: {first.text}{stop} {first.error.advice(settings)}."


def examine(
    root: Path,
    *,
    known_classes: Sequence[str] | None = None,
    known_images: Mapping[bytes, str] | None = None,
    channels: Literal[1, 3] = 3,
    image_size: int | None = None,
) -> Examination:
    """Examine the images of an update; pixels are not kept in memory.

    Args:
        root: folder of the images, with the layout of ``load_update``.
        known_classes: names of the learner's classes; ``None``: there is no learner.
        known_images: class names of the learner's stored images by ``selection.pixel_keys``; needs
            ``image_size``.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the learner's square; ``None``: there is no learner.

    Raises:
        GraceError: if ``root`` is not a folder. Every other problem is a finding.
    """
    assert known_images is None or image_size is not None
    rules = Rules(image_size=image_size)
    tree = scan(root)
    files = [*sorted(tree.files(False)), *sorted(tree.files(True))]
    read = partial(look_at, channels=channels, image_size=image_size)
    with decoding_threads() as pool:
        outcomes = pool.map(read, [file.path for file in files])
        # The pixels of each image are dropped at once.
        looks = [own if isinstance(own, GraceError) else own[0] for own in outcomes]
    judged = judge_images(root, files, looks, rules)
    used = [file for place, file in enumerate(files) if place not in judged.left_out]
    train, test = (Counter(f.class_name for f in used if f.is_test == own) for own in (False, True))
    duplicates = Counter(files[place].class_name for place in judged.duplicates)
    both = list(zip(files, looks, strict=True))
    unreadable = Counter(file.class_name for file, look in both if not isinstance(look, Look))
    readable = [(file, look) for file, look in both if isinstance(look, Look)]
    expected = Expected(
        channels=channels,
        image_size=image_size,
        class_names=[unicodedata.normalize("NFC", name) for name in known_classes or ()],
        images=known_images or {},
    )
    counts = {name: train[name] for name in tree.class_names}
    findings = [
        *judge_layout(tree, rules),
        *judged.findings,
        *advise(tree, readable, counts, expected),
    ]
    sizes = sorted({look.size for _, look in readable}, key=lambda s: (s[0] * s[1], s))
    order = ("error", "warning", "note")
    return Examination(
        classes={
            name: ClassCount(
                train=train[name],
                test=test[name],
                unreadable=unreadable[name],
                duplicates=duplicates[name],
                is_new=None if known_classes is None else name not in expected.class_names,
            )
            for name in sorted({folder.name for folder in tree.folders})
        },
        findings=sorted(findings, key=lambda finding: order.index(finding.severity)),
        num_images=len(files),
        smallest=sizes[0] if sizes else None,
        largest=sizes[-1] if sizes else None,
        modes=dict(Counter(look.kind.mode for _, look in readable if look.kind).most_common()),
    )
