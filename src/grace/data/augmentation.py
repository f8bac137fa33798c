"""Augmentation: a list of batched operations, then normalisation.

Shapes: B images in a batch, C channels, H×W pixels, K uniform draws per image.

Departures from the torchvision pipelines of the published protocols (docs/data.md):

1. Crop, flip, brightness and cutout equal torchvision's to the grey level (brightness truncates to
   whole levels as PIL does); only the random numbers differ.
2. A random resized crop is not rounded to whole grey levels (a difference below one level).
3. Images in memory were cut to a square of the final size before: the crop box is drawn inside that
   square, and the test transform only normalises. Images streamed from files are cropped at full
   resolution (``file_images.FileImages``).
4. AutoAugment and RandAugment take torchvision's operations for tensors, not PIL's, which shear
   about another point and interpolate otherwise (``image_changes``). A choice is drawn for every
   image of the batch, while torchvision draws one per call; a change of probability 0 never happens
   (in torchvision, once in 2²⁴ images).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from grace.data.image_changes import (
    NUM_CROP_DRAWS,
    Change,
    change_images,
    crop_boxes,
    is_signed,
    magnitude_bins,
    on_device,
    resized_crop,
)
from grace.settings.augmentation import AugmentationSetting, split_operation


@final
@dataclass(frozen=True, kw_only=True)
class Operation:
    """A random change of a batch of images. It holds no random state: equal draws, equal images."""

    num_draws: int
    """Uniform numbers K per image."""
    change: Callable[[Tensor, Tensor], Tensor]
    """Changes images (B, C, H, W), uint8 or float levels 0..255, by draws (B, K) in [0, 1) on the
    CPU or the images' device. It returns uint8 for uint8 images, except for a resized crop."""
    takes_levels: bool = False
    """It changes float levels in place. At the end of a list it gets floats, which saves a
    conversion to uint8 before they are normalised."""
    plans_on_cpu: bool = False
    """It decides on the CPU which image gets which change. With draws on a GPU, the CPU would have
    to wait."""
    resizes: bool = False
    """It is a random resized crop: images in files are cropped while they are decoded instead."""


def crop(images: Tensor, draws: Tensor, *, padding: int) -> Tensor:
    """Cut a window of its own size from each image, padded with black; all are equally likely."""
    (height, width), device = images.shape[2:], images.device
    offsets = (on_device(draws, device) * (2 * padding + 1)).long().clamp_(max=2 * padding)
    padded = F.pad(images, (padding, padding, padding, padding))
    # A view of every possible window: picking one per image copies runs of W bytes, no index per
    # pixel is ever made.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=device), :, offsets[:, 0], offsets[:, 1]]


def flip(images: Tensor, draws: Tensor) -> Tensor:
    """Mirror half of the images left to right."""
    flipped = on_device(draws[:, 0] < 0.5, images.device)
    # Picking whole images out of both versions is seven times faster than torch.where on uint8.
    both = torch.cat([images, images.flip(3)])
    places = torch.arange(len(flipped), device=flipped.device) + flipped * len(flipped)
    return both.index_select(0, places)


def _brightness(images: Tensor, draws: Tensor, *, change: float) -> Tensor:
    """Multiply the levels of each image by a factor U[1 - change, 1 + change]; cut off at 255."""
    factors = on_device(1 + change * (2 * draws[:, 0] - 1), images.device)[:, None, None, None]
    if images.is_floating_point():
        return images.mul_(factors).clamp_(max=255).floor_()
    return (images * factors).clamp_(max=255).to(torch.uint8)


def cut_out(images: Tensor, draws: Tensor, *, side: int) -> Tensor:
    """Blacken a square whose centre (y, x) is uniform over all pixels (arXiv 1708.04552).

    It covers the rows ``y - side // 2`` to ``y - side // 2 + side - 1``, and the columns likewise;
    parts of it outside the image have no effect.
    """
    inside: list[Tensor] = []
    for axis, length in enumerate(images.shape[2:]):
        centre = on_device((draws[:, axis] * length).long().clamp_(max=length - 1), images.device)
        offset = torch.arange(length, device=images.device) - (centre[:, None] - side // 2)
        inside.append((offset >= 0) & (offset < side))
    kept = ~(inside[0][:, :, None] & inside[1][:, None, :])
    return images * kept[:, None]


def _resized_crop(images: Tensor, draws: Tensor, *, size: int) -> Tensor:
    boxes = crop_boxes(on_device(draws, images.device), *images.shape[2:])
    return resized_crop(images, boxes, size)


Plan = Callable[[Sequence[Sequence[float]], int, int], Sequence[Sequence[Change | None]]]
"""Chooses the changes of each image, one after another, by its draws, and by height and width."""


def _planned(plan: Plan, num_draws: int, fill: int = 0) -> Operation:
    """Make an operation of the changes that a plan chooses; outside pixels get level ``fill``."""

    def change(images: Tensor, draws: Tensor) -> Tensor:
        # Levels of a resized crop are no whole numbers.
        images = images.round().to(torch.uint8) if images.is_floating_point() else images
        for changes in zip(*plan(draws.tolist(), *images.shape[2:]), strict=True):
            images = change_images(images, changes, fill)
        return images

    return Operation(num_draws=num_draws, change=change, plans_on_cpu=True)


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


def autoaugment(
    rows: Sequence[Sequence[float]], height: int, width: int
) -> list[list[Change | None]]:
    """Choose a sub-policy: two changes, each with its probability (arXiv 1805.09501).

    Draws: sub-policy, first change yes or no, second change yes or no, sign of the first magnitude,
    sign of the second.
    """
    bins, policy = magnitude_bins(10, height, width), cifar10_policy()

    def chosen(step: Step, chance: float, sign: float) -> Change | None:
        name, probability, place = step
        if chance >= probability:
            return None
        return name, 0.0 if place is None else _signed(name, bins[name][place], sign)

    found: list[list[Change | None]] = []
    for row in rows:
        first, second = policy[_choice(row[0], len(policy))]
        found.append([chosen(first, row[1], row[3]), chosen(second, row[2], row[4])])
    return found


def randaugment(
    rows: Sequence[Sequence[float]], height: int, width: int, *, magnitude: int
) -> list[list[Change | None]]:
    """Choose two changes, with replacement, of one magnitude 0..30 (arXiv 1909.13719).

    Draws: for each of them the change, and the sign of its magnitude.
    """
    bins = magnitude_bins(31, height, width)

    def chosen(draw: float, sign: float) -> Change | None:
        name = RANDAUGMENT_CHANGES[_choice(draw, len(RANDAUGMENT_CHANGES))]
        if name == "identity":
            return None
        return name, _signed(name, bins[name][magnitude], sign) if name in bins else 0.0

    return [[chosen(*row[:2]), chosen(*row[2:])] for row in rows]


def one_change(
    rows: Sequence[Sequence[float]], height: int, width: int, *, name: str, number: float
) -> list[list[Change | None]]:
    """Choose the magnitude of a change, or whether it happens if it has none.

    All bins up to the ``number``-th are equally likely, or it is the share of changed images.
    Draws: bin, or yes or no, and the sign if the change has one.
    """
    bins = magnitude_bins(10, height, width).get(name, ())[: int(number) + 1]
    if not bins:
        return [[(name, 0.0) if row[0] < number else None] for row in rows]
    return [[(name, _signed(name, bins[_choice(row[0], len(bins))], row[-1]))] for row in rows]


def _choice(draw: float, count: int) -> int:
    """Turn a uniform number in [0, 1) into an index 0..count-1."""
    return min(int(draw * count), count - 1)


def _signed(name: str, magnitude: float, draw: float) -> float:
    return -magnitude if is_signed(name) and draw < 0.5 else magnitude


def build_operations(name: AugmentationSetting, size: int) -> tuple[Operation, ...]:
    """Make the operations of a named augmentation, or of a list.

    Args:
        name: ``none``; ``shift``: crop with padding 1; ``cifar``: crop with padding of an eighth of
            the side (4 at 32 pixels), flip, brightness factor U[1 - 63/255, 1 + 63/255];
            ``imagenet``: random resized crop (area 0.08 to 1, ratio 3/4 to 4/3) and flip;
            ``autoaugment``: those of ``cifar``, AutoAugment's policy for CIFAR-10 with grey 128
            from outside, and cutout of half the side (16 at 32 pixels); ``randaugment``: crop and
            flip of ``cifar``, then RandAugment with two changes of magnitude 9 of 31 bins. Or the
            operations of a list, each ``name`` or ``name:number``
            (``settings.augmentation.OPERATIONS``).
        size: side of the images in pixels.

    Raises:
        GraceError: an operation of the list does not exist, or its number is out of range.
    """
    names = _NAMED[name] if isinstance(name, str) else name
    return tuple(_operation(*split_operation(text), size) for text in names)


_NAMED: Mapping[str, Sequence[str]] = {
    "none": (),
    "shift": ("crop:1",),
    "cifar": ("crop", "flip", "brightness"),
    "imagenet": ("resized_crop", "flip"),
    "autoaugment": ("crop", "flip", "brightness", "autoaugment", "cutout"),
    "randaugment": ("crop", "flip", "randaugment"),
}


def _operation(name: str, number: float | None, size: int) -> Operation:
    """Make one operation; without a number, the published one at this size."""
    # The published border is 4 pixels at 32: on smaller images it would cut half the object away.
    published = {
        "crop": max(1, size // 8),
        "brightness": 63 / 255,
        "cutout": size // 2,
        **dict.fromkeys(("autocontrast", "equalize", "invert"), 0.5),
    }
    number = published.get(name, 9) if number is None else number
    match name:
        case "crop":
            return Operation(num_draws=2, change=partial(crop, padding=int(number)))
        case "resized_crop":
            change = partial(_resized_crop, size=size)
            return Operation(num_draws=NUM_CROP_DRAWS, change=change, resizes=True)
        case "flip":
            return Operation(num_draws=1, change=flip)
        case "brightness":
            change = partial(_brightness, change=number)
            return Operation(num_draws=1, change=change, takes_levels=True)
        case "cutout":
            return Operation(num_draws=2, change=partial(cut_out, side=int(number)))
        case "autoaugment":
            return _planned(autoaugment, 5, fill=128)
        case "randaugment":
            return _planned(partial(randaugment, magnitude=int(number)), 4)
    return _planned(partial(one_change, name=name, number=number), 1 + is_signed(name), fill=128)


@final
@dataclass(frozen=True, kw_only=True)
class Enlarge:
    """Enlarges normalised images to a square, after everything else.

    Images are stored at their own size and enlarged batch by batch, so that a backbone that was
    trained on larger images needs no larger exemplars.
    """

    size: int
    """Side of the result in pixels."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def __call__(self, images: Tensor) -> Tensor:
        """Enlarge images (B, C, H, W) to (B, C, size, size)."""
        if images.shape[2:] == (self.size, self.size):
            return images
        size = (self.size, self.size)
        return F.interpolate(images, size, mode=self.interpolation, align_corners=False)


@final
@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The training transform and the test transform; made by ``build_augmentation``.

    Every image uses ``num_draws`` uniform numbers of its own: those of the first operation, then
    those of the second, and so on.
    """

    scale: Tensor
    """(C, 1, 1) factor from grey levels to normalised values, 1 / (255 · std)."""
    shift: Tensor
    """(C, 1, 1) summand, -mean / std."""
    operations: tuple[Operation, ...] = ()
    """Operations on training images, in this order, before normalisation."""
    enlarge: Enlarge | None = None
    """Follows normalisation; ``None``: images keep their size."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers K per image."""
        return sum(operation.num_draws for operation in self.operations)

    @property
    def crops_at_random(self) -> bool:
        """True if the first operation is a random resized crop, done while decoding files."""
        return bool(self.operations) and self.operations[0].resizes

    @property
    def plans_on_cpu(self) -> bool:
        """True if draws should be on the CPU, where images are grouped by their operation."""
        return any(operation.plans_on_cpu for operation in self.operations)

    def to(self, device: torch.device) -> "Augmentation":
        """Return the same transform with its constants on ``device``."""
        return replace(self, scale=self.scale.to(device), shift=self.shift.to(device))

    def normalise(self, images: Tensor, channels_last: bool = False) -> Tensor:
        """Apply the test transform: ``(x / 255 - mean) / std``.

        Args:
            images: (B, C, H, W) uint8, or float levels 0..255.
            channels_last: the result has channels-last strides.

        Returns:
            (B, C, H, W) float32; H and W are the enlarged ones if images are enlarged.
        """
        return self._scaled(_as_float(images, channels_last))

    def apply(self, images: Tensor, draws: Tensor, channels_last: bool = False) -> Tensor:
        """Augment and normalise a batch.

        Args:
            images: (B, C, H, W) uint8.
            draws: (B, K) uniform numbers in [0, 1), on the images' device or on the CPU
                (``plans_on_cpu`` says which is faster).
            channels_last: give the result channels-last strides.

        Returns:
            (B, C, H, W) float32; H and W change under a random resized crop.
        """
        assert draws.shape == (len(images), self.num_draws)
        last = len(self.operations)
        while last and self.operations[last - 1].takes_levels:
            last -= 1
        parts = draws.split([operation.num_draws for operation in self.operations], dim=1)
        for operation, part in zip(self.operations[:last], parts, strict=False):
            images = operation.change(images, part)
        images = _as_float(images, channels_last)
        for operation, part in zip(self.operations[last:], parts[last:], strict=True):
            images = operation.change(images, part)
        return self._scaled(images)

    def _scaled(self, levels: Tensor) -> Tensor:
        """Normalise float levels in place, and enlarge them."""
        scale, shift = self.scale.to(levels.device), self.shift.to(levels.device)
        if levels.is_contiguous():
            levels.mul_(scale).add_(shift)
        else:
            # Channels-last: broadcasting over an innermost dimension of 3 is ten times slower than
            # over whole rows of W·C values.
            assert levels.is_contiguous(memory_format=torch.channels_last)
            rows, width = levels.permute(0, 2, 3, 1).flatten(2), levels.shape[3]
            rows.mul_(scale.flatten().repeat(width)).add_(shift.flatten().repeat(width))
        return levels if self.enlarge is None else self.enlarge(levels)


def _as_float(images: Tensor, channels_last: bool) -> Tensor:
    """Copy to float32 in the given memory layout.

    The layout changes before the type: four times fewer bytes move, and the large float tensor is
    allocated only once.
    """
    if channels_last:
        images = torch.stack(images.unbind(dim=1), dim=3).permute(0, 3, 1, 2)
        return images.to(torch.float32, copy=True)
    return images.to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def build_augmentation(
    name: AugmentationSetting,
    mean: Sequence[float],
    std: Sequence[float],
    size: int,
    enlarge: Enlarge | None = None,
) -> Augmentation:
    """Make a named augmentation, or one from a list of operations.

    Args:
        name: a name or a list, as ``build_operations`` takes it.
        mean: normalisation mean per channel, of pixels in [0, 1].
        std: normalisation standard deviation per channel, positive.
        size: side of the images in pixels.
        enlarge: what normalised images are enlarged to; ``None``: they keep their size.

    Returns:
        The transform, with constants on the CPU.

    Raises:
        GraceError: an operation of the list does not exist, or its number is out of range.
    """
    deviation = torch.tensor(std, dtype=torch.float64)[:, None, None]
    return Augmentation(
        scale=(1 / (255 * deviation)).float(),
        shift=(-torch.tensor(mean, dtype=torch.float64)[:, None, None] / deviation).float(),
        operations=build_operations(name, size),
        enlarge=enlarge,
    )
