"""Examine the images of an update without learning them."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.data.findings import Expected, Finding, find, train_counts
from grace.data.survey import Survey, survey_update


@final
@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """Image files of one class, in both parts but where one is named."""

    train: int
    """Training images that can be learned from: readable, duplicates left out."""
    test: int
    """Test images, likewise."""
    unreadable: int
    duplicates: int
    """Readable images left out, since another of the folder is the same."""
    is_new: bool | None
    """Whether the model lacks the class; none without a model."""


@final
@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found in the images of an update."""

    classes: Mapping[str, ClassCount]
    """By class name, sorted."""
    findings: Sequence[Finding]
    """The worst first."""
    num_images: int
    """Image files in class folders, readable or not."""
    smallest: tuple[int, int] | None
    """Width and height of the readable image with the fewest pixels; none without any."""
    largest: tuple[int, int] | None
    """Likewise of the one with the most; the same as ``smallest`` where all have one size."""
    modes: Mapping[str, int]
    """Number of readable images by PIL's name of their kind of pixels, the commonest first."""

    @property
    def is_ready(self) -> bool:
        """Whether the images can be learned as they are."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence: what to change first, or that the images are ready."""
        first = self.findings[0] if self.findings else None
        if first is None or first.severity == "note":
            num_images = sum(count.train for count in self.classes.values())
            return f"Ready: {num_images} images of {len(self.classes)} classes can be learned."
        start = "Not ready" if first.severity == "error" else "Ready, but could be better"
        stop = "" if first.text.endswith("?") else ";"
        return f"{start}: {first.text}{stop} {first.remedy}."


def examine(
    root: Path,
    *,
    known_classes: Sequence[str] | None = None,
    known_images: Mapping[bytes, str] | None = None,
    channels: Literal[1, 3] = 3,
    image_size: int | None = None,
) -> Examination:
    """Examine the images of an update; of each image only what was found stays in memory.

    Args:
        root: folder of the images, laid out as for ``load_update``.
        known_classes: names of the model's classes; none without a model.
        known_images: class names of the model's own images by ``selection.pixel_keys``; taken
            with ``image_size`` only, without which images are not brought to one size.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the learner's square; none without a model.

    Raises:
        ValueError: if ``root`` is no folder. Whatever is wrong inside it is a finding.
    """
    assert known_images is None or image_size is not None
    survey = survey_update(root, channels, image_size)
    expected = Expected(
        channels=channels,
        image_size=image_size,
        class_names=[unicodedata.normalize("NFC", name) for name in known_classes or ()],
        images=known_images or {},
    )
    sizes = sorted({facts.size for _, facts in survey.readable}, key=lambda s: (s[0] * s[1], s))
    return Examination(
        classes=_classes(survey, None if known_classes is None else expected.class_names),
        findings=find(survey, expected),
        num_images=len(survey.readable) + len(survey.unreadable),
        smallest=sizes[0] if sizes else None,
        largest=sizes[-1] if sizes else None,
        modes=dict(Counter(facts.mode for _, facts in survey.readable).most_common()),
    )


def _classes(survey: Survey, known: Sequence[str] | None) -> dict[str, ClassCount]:
    train = train_counts(survey)
    test: Counter[str] = Counter()
    duplicates: Counter[str] = Counter()
    for place, (file, _) in enumerate(survey.readable):
        is_left_out = place in survey.duplicates.left_out
        duplicates[file.class_name] += is_left_out
        test[file.class_name] += file.is_test and not is_left_out
    unreadable = Counter(file.class_name for file, _ in survey.unreadable)
    return {
        name: ClassCount(
            train=train.get(name, 0),
            test=test[name],
            unreadable=unreadable[name],
            duplicates=duplicates[name],
            is_new=None if known is None else name not in known,
        )
        for name in sorted({folder.name for folder in survey.folders})
    }
