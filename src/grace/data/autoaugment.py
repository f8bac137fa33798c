"""Random image changes: AutoAugment, RandAugment, and single changes.

Shapes: B images in a batch, C channels, H×W pixels.

Departures from ``torchvision.transforms``: a choice is drawn for every image of the batch, while
torchvision draws one per call; a change of probability 0 never happens (in torchvision, once in 2²⁴
images).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from grace.data.image_changes import Change, change_images, is_signed, magnitude_bins
from grace.data.operations import Operation, whole_levels

Step = tuple[str, float, int | None]
"""Name of a change, the probability with which it happens, and the bin of its magnitude 0..9."""

CIFAR10_POLICY: tuple[tuple[Step, Step], ...] = (
    (("invert", 0.1, None), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, None), ("equalize", 0.9, None)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, None), ("equalize", 0.5, None)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, None), ("autocontrast", 0.4, None)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, None)),
    (("equalize", 0.2, None), ("autocontrast", 0.6, None)),
    (("equalize", 0.2, None), ("equalize", 0.6, None)),
    (("colour", 0.9, 9), ("equalize", 0.6, None)),
    (("autocontrast", 0.8, None), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, None)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, None), ("solarize", 0.8, 3)),
    (("equalize", 0.8, None), ("invert", 0.1, None)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, None)),
)
"""The 25 sub-policies learnt on CIFAR-10 (arXiv 1805.09501, appendix)."""

RANDAUGMENT_CHANGES: tuple[str, ...] = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "colour",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
"""The fourteen changes among which RandAugment chooses (arXiv 1909.13719, section 3)."""


class PlannedChanges(Operation):
    """Applies random changes to each image; subclasses choose them from its draws."""

    plans_on_cpu: ClassVar[bool] = True
    num_changes: int
    """Changes per image, one after another."""
    fill: int
    """Grey level 0..255 of pixels from outside the image."""

    @abstractmethod
    def plan(
        self, rows: Sequence[Sequence[float]], which: int, height: int, width: int
    ) -> list[Change | None]:
        """Choose one change of every image.

        Args:
            rows: the draws of each image.
            which: number of the change, from 0.
            height: of the images in pixels.
            width: of the images in pixels.

        Returns:
            A change for each image; ``None``: it does not change.
        """

    @override
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        images, rows = whole_levels(images), draws.tolist()
        for which in range(self.num_changes):
            images = change_images(images, self.plan(rows, which, *images.shape[2:]), self.fill)
        return images


@final
@dataclass(frozen=True, kw_only=True)
class AutoAugment(PlannedChanges):
    """Applies one random sub-policy to each image: two changes, each with its probability.

    Draws: sub-policy, first change yes or no, second change yes or no, sign of the first magnitude,
    sign of the second.

    Source:
        Cubuk et al., arXiv 1805.09501; ``torchvision.transforms.AutoAugment``.
    """

    policy: tuple[tuple[Step, Step], ...] = CIFAR10_POLICY
    fill: int = 128
    """Grey level 0..255 of pixels from outside the image."""

    num_changes = 2
    num_draws = 5

    @override
    def plan(
        self, rows: Sequence[Sequence[float]], which: int, height: int, width: int
    ) -> list[Change | None]:
        bins = magnitude_bins(10, height, width)
        changes: list[Change | None] = []
        for row in rows:
            name, probability, place = self.policy[_choice(row[0], len(self.policy))][which]
            magnitude = 0.0 if place is None else _signed(name, bins[name][place], row[3 + which])
            changes.append((name, magnitude) if row[1 + which] < probability else None)
        return changes


@final
@dataclass(frozen=True, kw_only=True)
class RandAugment(PlannedChanges):
    """Applies some random changes of one magnitude to each image, drawn with replacement.

    Draws: for each of them the change, and the sign of its magnitude.

    Source:
        Cubuk et al., arXiv 1909.13719; ``torchvision.transforms.RandAugment``.
    """

    num_changes: int = 2
    """Changes per image, at least 1. More: images are harder to recognise."""
    magnitude: int = 9
    """Bin 0..30 of the magnitude (``magnitude_bins(31, …)``). Higher: images change more."""
    fill: int = 0
    """Grey level 0..255 of pixels from outside the image."""

    @property
    @override
    def num_draws(self) -> int:
        return 2 * self.num_changes

    @override
    def plan(
        self, rows: Sequence[Sequence[float]], which: int, height: int, width: int
    ) -> list[Change | None]:
        bins = magnitude_bins(31, height, width)
        changes: list[Change | None] = []
        for row in rows:
            name = RANDAUGMENT_CHANGES[_choice(row[2 * which], len(RANDAUGMENT_CHANGES))]
            magnitude = 0.0
            if name in bins:
                magnitude = _signed(name, bins[name][self.magnitude], row[2 * which + 1])
            changes.append(None if name == "identity" else (name, magnitude))
        return changes


@final
@dataclass(frozen=True, kw_only=True)
class RandomMagnitude(PlannedChanges):
    """Applies one change of a random magnitude: all bins up to the largest are equally likely.

    Draws: bin, and the sign if the change has one.
    """

    name: str
    """One of the changes that have a magnitude (``magnitude_bins``)."""
    largest: int = 9
    """Largest bin 1..9 (``magnitude_bins(10, …)``). Higher: images change more."""
    fill: int = 128
    """Grey level 0..255 of pixels from outside the image."""

    num_changes = 1

    @property
    @override
    def num_draws(self) -> int:
        return 1 + is_signed(self.name)

    @override
    def plan(
        self, rows: Sequence[Sequence[float]], which: int, height: int, width: int
    ) -> list[Change | None]:
        bins = magnitude_bins(10, height, width)[self.name]
        count = self.largest + 1
        return [
            (self.name, _signed(self.name, bins[_choice(row[0], count)], row[-1])) for row in rows
        ]


@final
@dataclass(frozen=True, kw_only=True)
class RandomShare(PlannedChanges):
    """Applies one change without a magnitude to a share of the images. Draws: yes or no."""

    name: str
    """``autocontrast``, ``equalize`` or ``invert``."""
    share: float = 0.5
    """Share of the images in (0, 1]. Higher: more images change."""

    num_changes = 1
    num_draws = 1
    fill = 0

    @override
    def plan(
        self, rows: Sequence[Sequence[float]], which: int, height: int, width: int
    ) -> list[Change | None]:
        return [(self.name, 0.0) if row[0] < self.share else None for row in rows]


def _choice(draw: float, count: int) -> int:
    """Turn a uniform number in [0, 1) into an index 0..count-1."""
    return min(int(draw * count), count - 1)


def _signed(name: str, magnitude: float, draw: float) -> float:
    return -magnitude if is_signed(name) and draw < 0.5 else magnitude
