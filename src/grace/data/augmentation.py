"""Augmentation: a list of batched operations, then normalisation.

Shapes: B images in a batch, C channels, H×W pixels, K uniform draws per image.

Departures from the torchvision pipelines of the published protocols (docs/data.md):

1. Crop, flip, brightness and cutout equal torchvision's to the grey level (brightness truncates to
   whole levels as PIL does); only the random numbers differ.
2. A random resized crop is not rounded to whole grey levels (a difference below one level).
3. Images in memory were cut to a square of the final size before: the crop box is drawn inside that
   square, and the test transform only normalises. Images streamed from files are cropped at full
   resolution (``files.FileImages``).
4. AutoAugment and RandAugment take torchvision's operations for tensors, not PIL's, which shear
   about another point and interpolate otherwise (``image_changes``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from grace.data.image_changes import AutoAugment, RandAugment, RandomMagnitude, RandomShare
from grace.data.operations import (
    Cutout,
    Operation,
    RandomBrightness,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
)
from grace.settings.augmentation import AugmentationSetting, split_operation


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
        return bool(self.operations) and isinstance(self.operations[0], RandomResizedCrop)

    @property
    def plans_on_cpu(self) -> bool:
        """True if draws should be on the CPU, where images are grouped by their operation."""
        return any(operation.plans_on_cpu for operation in self.operations)

    def to(self, device: torch.device) -> "Augmentation":
        """Return the same transform with its constants on ``device``."""
        return replace(self, scale=self.scale.to(device), shift=self.shift.to(device))

    def with_operations(self, operations: Sequence[Operation]) -> "Augmentation":
        """Return a transform with other operations and the same normalisation."""
        return replace(self, operations=tuple(operations))

    def normalise(self, images: Tensor, channels_last: bool = False) -> Tensor:
        """Apply the test transform: ``(x / 255 - mean) / std``.

        Args:
            images: (B, C, H, W) uint8, or float levels 0..255.
            channels_last: the result has channels-last strides.

        Returns:
            (B, C, H, W) float32; H and W are the enlarged ones if images are enlarged.
        """
        return self._enlarged(self._scaled(_as_float(images, channels_last)))

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
        return self._augmented(images, draws, 0, channels_last)

    def finish(self, images: Tensor, draws: Tensor, channels_last: bool = False) -> Tensor:
        """Apply all operations but the first, a random resized crop, and normalise.

        Args:
            images: (B, C, H, W) uint8, cropped already.
            draws: (B, K) all draws of the images, those of the crop included.
            channels_last: give the result channels-last strides.

        Returns:
            (B, C, H, W) float32.
        """
        assert self.crops_at_random
        return self._augmented(images, draws, 1, channels_last)

    def _augmented(self, images: Tensor, draws: Tensor, first: int, channels_last: bool) -> Tensor:
        """Apply the operations from number ``first`` on, and normalise."""
        assert draws.shape == (len(images), self.num_draws)
        ends = list(accumulate(operation.num_draws for operation in self.operations))
        last = len(self.operations)
        while last > first and self.operations[last - 1].takes_levels:
            last -= 1
        for place in range(first, len(self.operations)):
            if place == last:
                images = _as_float(images, channels_last)
            operation, end = self.operations[place], ends[place]
            images = operation(images, draws[:, end - operation.num_draws : end])
        if last == len(self.operations):
            images = _as_float(images, channels_last)
        return self._enlarged(self._scaled(images))

    def _enlarged(self, images: Tensor) -> Tensor:
        return images if self.enlarge is None else self.enlarge(images)

    def _scaled(self, levels: Tensor) -> Tensor:
        """Normalise float levels in place."""
        scale, shift = self.scale.to(levels.device), self.shift.to(levels.device)
        if levels.is_contiguous():
            return levels.mul_(scale).add_(shift)
        # Channels-last: broadcasting over an innermost dimension of 3 is ten times slower than
        # over whole rows of W·C values.
        width = levels.shape[3]
        assert levels.is_contiguous(memory_format=torch.channels_last)
        rows = levels.permute(0, 2, 3, 1).flatten(2)
        rows.mul_(scale.flatten().repeat(width)).add_(shift.flatten().repeat(width))
        return levels


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
            (``configs.augmentation.OPERATIONS``).
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
    match name:
        case "crop":
            # The published 4 pixels at 32: on smaller images they would cut half the object away.
            return RandomCrop(padding=max(1, size // 8) if number is None else int(number))
        case "resized_crop":
            return RandomResizedCrop(size=size)
        case "flip":
            return RandomFlip()
        case "brightness":
            return RandomBrightness(change=63 / 255 if number is None else number)
        case "cutout":
            return Cutout(side=size // 2 if number is None else int(number))
        case "autoaugment":
            return AutoAugment()
        case "randaugment":
            return RandAugment(magnitude=9 if number is None else int(number))
        case "autocontrast" | "equalize" | "invert":
            return RandomShare(name=name, share=0.5 if number is None else number)
    return RandomMagnitude(name=name, largest=9 if number is None else int(number))
