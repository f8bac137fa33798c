"""Random image changes: AutoAugment, RandAugment and single changes, each over a batch of images.

Shapes: B images in a batch, M of them with one change, C channels (1 or 3), H×W pixels.

Every change has one magnitude per image. On the CPU results equal torchvision's functions for
tensors to the bit.

Departures from ``torchvision.transforms``: a choice is drawn for every image of the batch, while
torchvision draws one per call; a change of probability 0 never happens (in torchvision, once in 2²⁴
images).

Source:
    Cubuk et al., AutoAugment, arXiv 1805.09501; ``torchvision.transforms.autoaugment``.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import ClassVar, cast, final

import torch
from torch import Tensor
from typing_extensions import override

from grace.data.operations import Operation, adjust_brightness, on_device, whole_levels

Change = tuple[str, float]
"""Name of a change in ``CHANGES``, and its signed magnitude."""


def change_images(images: Tensor, changes: Sequence[Change | None], fill: int) -> Tensor:
    """Apply a change to each image; images with the same change are computed together.

    Args:
        images: (B, C, H, W) uint8.
        changes: one for each of the B images; ``None``: it does not change.
        fill: grey level 0..255 of pixels from outside the image.

    Returns:
        (B, C, H, W) uint8.
    """
    groups: dict[str, tuple[list[int], list[float]]] = {}
    for row, change in enumerate(changes):
        if change is not None:
            rows, magnitudes = groups.setdefault(change[0], ([], []))
            rows.append(row)
            magnitudes.append(change[1])
    if not groups:
        return images
    result = images.clone()
    for name, (rows, magnitudes) in groups.items():
        places = on_device(torch.tensor(rows), images.device)
        result[places] = CHANGES[name](images.index_select(0, places), magnitudes, fill)
    return result


@lru_cache(maxsize=64)
def magnitude_bins(num_bins: int, height: int, width: int) -> Mapping[str, tuple[float, ...]]:
    """List the magnitudes of every change that has one, from the weakest to the strongest.

    Args:
        num_bins: number of magnitudes, at least 2: 10 in AutoAugment, 31 in RandAugment.
        height: height of the images in pixels; vertical translations are shares of it.
        width: width of the images in pixels.

    Returns:
        By name: shears as a slope 0..0.3; translations in pixels, 0..150/331 of the side; rotations
        in degrees 0..30; brightness, colour, contrast and sharpness as m = 0..0.9, where the factor
        is 1 ± m; posterize as remaining bits 8..4; solarize as the level from which pixels are
        inverted, 255..0.
    """

    def even(first: float, last: float) -> tuple[float, ...]:
        return tuple(torch.linspace(first, last, num_bins).tolist())

    steps = [place / ((num_bins - 1) / 4) for place in range(num_bins)]
    return {
        "shear_x": even(0, 0.3),
        "shear_y": even(0, 0.3),
        "translate_x": even(0, 150 / 331 * width),
        "translate_y": even(0, 150 / 331 * height),
        "rotate": even(0, 30),
        "brightness": even(0, 0.9),
        "colour": even(0, 0.9),
        "contrast": even(0, 0.9),
        "sharpness": even(0, 0.9),
        "posterize": tuple(float(8 - round(step)) for step in steps),
        "solarize": even(255, 0),
    }


def is_signed(name: str) -> bool:
    """Return True if half of the images get the magnitude with a minus sign."""
    return name not in ("posterize", "solarize", "autocontrast", "equalize", "invert", "identity")


@lru_cache(maxsize=64)
def _source_pixels(
    name: str, magnitude: float, height: int, width: int, device: torch.device
) -> Tensor:
    """Return the source pixel's number (H·W,) for every result pixel; H·W if it is outside.

    Magnitudes come from bins, so there are few such tables, and they are cached.
    """
    # It takes a second to import.
    from torchvision.transforms.v2 import functional

    # Moving the pixels' numbers, 1 to H·W, rounds where moving the image would; outside is 0.
    numbers = torch.arange(1.0, height * width + 1).view(1, 1, height, width)
    if name == "rotate":
        moved = functional.rotate(numbers, magnitude)
    else:
        by = [0.0, 0.0]
        by[name.endswith("y")] = magnitude
        translate, shear = [int(pixels) for pixels in by], [0.0, 0.0]
        if name.startswith("shear"):
            translate, shear = [0, 0], [math.degrees(math.atan(slope)) for slope in by]
        moved = functional.affine(numbers, 0.0, translate, 1.0, shear, center=[0.0, 0.0])
    found = moved.flatten().long() - 1
    return torch.where(found < 0, height * width, found).to(device)


def move_pixels(name: str, images: Tensor, magnitudes: Sequence[float], fill: int) -> Tensor:
    """Shear, translate or rotate images with nearest-neighbour pixels.

    Args:
        name: ``shear_x``, ``shear_y``, ``translate_x``, ``translate_y`` or ``rotate``.
        images: (M, C, H, W) uint8.
        magnitudes: M signed magnitudes: slope, pixels or degrees.
        fill: grey level of pixels from outside.

    Returns:
        (M, C, H, W) uint8.
    """
    count, channels, height, width = images.shape
    sources = torch.stack(
        [_source_pixels(name, value, height, width, images.device) for value in magnitudes]
    )
    outside = images.new_full((count, channels, 1), fill)
    pixels = torch.cat([images.flatten(2), outside], dim=2)
    return pixels.gather(2, sources[:, None].expand(-1, channels, -1)).view_as(images)


def blend(images: Tensor, others: Tensor, magnitudes: Sequence[float]) -> Tensor:
    """Blend images with others: ``f·x + (1 - f)·y`` with ``f = 1 + m``.

    Args:
        images: (M, C, H, W) uint8 or whole float levels x.
        others: y, float32 levels that broadcast to (M, C, H, W).
        magnitudes: M numbers m in [-1, 1]; -1 gives the others, 0 the images.

    Returns:
        (M, C, H, W) uint8, cut off to 0..255 and truncated.
    """
    factors = 1 + torch.tensor(magnitudes, dtype=torch.float64)[:, None, None, None]
    weights = on_device(torch.stack([factors, 1 - factors]).float(), images.device)
    return (weights[0] * images).add_(weights[1] * others).clamp_(0, 255).to(torch.uint8)


def grey_levels(images: Tensor) -> Tensor:
    """Return the luminance (M, 1, H, W) of images (M, C, H, W) in whole float32 levels."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114).floor_()


def _brightness(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    factors = (1 + torch.tensor(magnitudes, dtype=torch.float64)).float()
    return adjust_brightness(images.float(), on_device(factors, images.device)).to(torch.uint8)


def _colour(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    if images.shape[1] == 1:
        return images
    return blend(images, grey_levels(images), magnitudes)


def _contrast(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    return blend(images, grey_levels(images).mean(dim=(1, 2, 3), keepdim=True), magnitudes)


def _sharpness(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    levels = images.float()
    rows = levels[:, :, :-2] + levels[:, :, 1:-1] + levels[:, :, 2:]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    # Weights 1 around a 5, over 13. The border keeps its levels.
    sums.add_(levels[:, :, 1:-1, 1:-1], alpha=4)
    smooth = levels.clone()
    smooth[:, :, 1:-1, 1:-1] = sums.div_(13).round_()
    return blend(levels, smooth, magnitudes)


def _posterize(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    masks = [256 - (1 << (8 - int(bits))) for bits in magnitudes]
    return images & _per_image(masks, images)


def _solarize(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    bright = images >= _per_image([math.ceil(level) for level in magnitudes], images)
    # x xor 255 = 255 - x.
    return images ^ bright.to(torch.uint8).mul_(255)


def _autocontrast(images: Tensor, _magnitudes: Sequence[float], _fill: int) -> Tensor:
    low, high = (extreme(images, dim=(2, 3), keepdim=True) for extreme in (torch.amin, torch.amax))
    # A channel of one level stays as it is.
    flat = low == high
    low, scale = low.masked_fill(flat, 0), (255 / (high.float() - low)).masked_fill(flat, 1)
    return (images.float() - low).mul_(scale).clamp_(0, 255).to(torch.uint8)


def _equalize(images: Tensor, _magnitudes: Sequence[float], _fill: int) -> Tensor:
    from torchvision.transforms.v2 import functional

    return cast(Tensor, functional.equalize(images))


def _invert(images: Tensor, _magnitudes: Sequence[float], _fill: int) -> Tensor:
    # Of uint8, not x = 255 - x.
    return ~images


def _identity(images: Tensor, _magnitudes: Sequence[float], _fill: int) -> Tensor:
    return images


def _per_image(values: Sequence[int], images: Tensor) -> Tensor:
    """Return one level per image, (M, 1, 1, 1) uint8, on the images' device."""
    levels = torch.tensor(values, dtype=torch.uint8)[:, None, None, None]
    return on_device(levels, images.device)


CHANGES: Mapping[str, Callable[[Tensor, Sequence[float], int], Tensor]] = {
    "shear_x": partial(move_pixels, "shear_x"),
    "shear_y": partial(move_pixels, "shear_y"),
    "translate_x": partial(move_pixels, "translate_x"),
    "translate_y": partial(move_pixels, "translate_y"),
    "rotate": partial(move_pixels, "rotate"),
    "brightness": _brightness,
    "colour": _colour,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": _invert,
    "identity": _identity,
}
"""Changes by name; each takes images (M, C, H, W) uint8, M magnitudes and the fill level."""


Step = tuple[str, float, int | None]
"""Name of a change, the probability with which it happens, and the bin of its magnitude 0..9."""

RANDAUGMENT_CHANGES = ("identity", *magnitude_bins(31, 1, 1), "autocontrast", "equalize")
"""The fourteen changes among which RandAugment chooses (arXiv 1909.13719, section 3)."""


@cache
def cifar10_policy() -> Sequence[tuple[Step, Step]]:
    """Return the 25 sub-policies learnt on CIFAR-10 (arXiv 1805.09501, appendix)."""
    from torchvision.transforms import autoaugment as published

    def ours(name: str, probability: float, place: int | None) -> Step:
        words = re.sub(r"(?<=[a-z])(?=[XY]$)", "_", name).lower()
        return words.replace("color", "colour"), probability, place

    found = published.AutoAugment(published.AutoAugmentPolicy.CIFAR10)
    return [(ours(*first), ours(*second)) for first, second in found.policies]


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

    fill: int = 128
    """Grey level 0..255 of pixels from outside the image."""

    num_changes = 2
    num_draws = 5

    @override
    def plan(
        self, rows: Sequence[Sequence[float]], which: int, height: int, width: int
    ) -> list[Change | None]:
        bins = magnitude_bins(10, height, width)
        policy = cifar10_policy()
        changes: list[Change | None] = []
        for row in rows:
            name, probability, place = policy[_choice(row[0], len(policy))][which]
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
