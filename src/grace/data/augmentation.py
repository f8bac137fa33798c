"""Augmentation of whole batches on their device, with one draw per image.

Shapes: B images in a batch, C channels, H×W pixels, K uniform draws per image.

Departures from the torchvision pipeline of the published protocol (spec §1.2):

1. Crop, flip and brightness equal torchvision's to the grey level (brightness truncates to whole
   levels as PIL does); only the random numbers differ.
2. A random resized crop is not rounded to whole grey levels (below one level of difference).
3. Images held in memory have been cut to a square of the final size before, so the crop box is
   drawn inside that square and the test transform only normalises; images streamed from files are
   cropped at full resolution (``files.FileImages``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from grace.data.crops import CropDraws, crop_boxes, resized_crop


def crop_with_padding(images: Tensor, rows: Tensor, columns: Tensor, padding: int) -> Tensor:
    """Pad images with black and cut a window of their own size from each.

    Args:
        images: (B, C, H, W) uint8.
        rows: (B,) int64 in 0..2·padding, top of each window in the padded image.
        columns: (B,) int64 in 0..2·padding, left of each window in the padded image.
        padding: black pixels added on each side.

    Returns:
        (B, C, H, W) uint8.
    """
    height, width = images.shape[2:]
    padded = F.pad(images, (padding, padding, padding, padding))
    # A view of every possible window: picking one per image copies runs of W bytes, no index per
    # pixel is ever made.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images), device=images.device), :, rows, columns]


def flip_horizontally(images: Tensor, flip: Tensor) -> Tensor:
    """Mirror the images (B, C, H, W) left to right where ``flip`` (B,) is true."""
    # Picking whole images out of both versions is seven times faster than torch.where on uint8.
    both = torch.cat([images, images.flip(3)])
    return both.index_select(0, torch.arange(len(flip), device=flip.device) + flip * len(flip))


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply grey levels by a factor per image: ``⌊min(255, f · x)⌋``, as PIL and torchvision.

    Args:
        images: (B, C, H, W) float32 with whole levels 0..255; changed in place.
        factors: (B,) non-negative.

    Returns:
        ``images``, whole levels 0..255.
    """
    return images.mul_(factors[:, None, None, None]).clamp_(max=255).floor_()


@final
@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """A training transform and its test transform; made by ``build_augmentation``.

    Every image consumes ``num_draws`` uniform numbers of its own, in the order crop row, crop
    column, flip, brightness (or a random resized crop's numbers, then flip).
    """

    scale: Tensor
    """(C, 1, 1) factor from grey levels to normalised values, 1 / (255 · std)."""
    shift: Tensor
    """(C, 1, 1) summand, -mean / std."""
    padding: int = 0
    """Pixels of black border before the random crop; 0 for none."""
    crop_size: int | None = None
    """Side in pixels of a random resized crop; none for none."""
    flip: bool = False
    """Mirror half of the images."""
    brightness: float = 0.0
    """Largest relative change b of brightness: factors are U[1 - b, 1 + b]."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers K per image."""
        crop = CropDraws.num_draws if self.crop_size else 2 * (self.padding > 0)
        return crop + self.flip + (self.brightness > 0)

    def to(self, device: torch.device) -> "Augmentation":
        """Return the same transform with its constants on ``device``."""
        return replace(self, scale=self.scale.to(device), shift=self.shift.to(device))

    def normalise(self, images: Tensor, channels_last: bool = False) -> Tensor:
        """Apply the test transform: ``(x / 255 - mean) / std``.

        Args:
            images: (B, C, H, W) uint8, or float levels 0..255.
            channels_last: give the result channels-last strides.

        Returns:
            (B, C, H, W) float32.
        """
        return self._scaled(_as_float(images, channels_last))

    def apply(self, images: Tensor, draws: Tensor, channels_last: bool = False) -> Tensor:
        """Augment and normalise a batch.

        Args:
            images: (B, C, H, W) uint8.
            draws: (B, K) uniform numbers in [0, 1), on the images' device.
            channels_last: give the result channels-last strides.

        Returns:
            (B, C, H, W) float32; H and W become ``crop_size`` under a random resized crop.
        """
        assert draws.shape == (len(images), self.num_draws)
        if self.crop_size:
            boxes = crop_boxes(draws[:, : CropDraws.num_draws], *images.shape[2:])
            flip = draws[:, CropDraws.num_draws] < 0.5 if self.flip else None
            cropped = resized_crop(images, boxes, self.crop_size, flip)
            return self._scaled(_as_float(cropped, channels_last))
        if self.padding:
            offsets = (draws[:, :2] * (2 * self.padding + 1)).long().clamp_(max=2 * self.padding)
            images = crop_with_padding(images, offsets[:, 0], offsets[:, 1], self.padding)
        return self.finish(images, draws, channels_last)

    def finish(self, images: Tensor, draws: Tensor, channels_last: bool = False) -> Tensor:
        """Flip, change brightness and normalise images that are cropped already.

        Args:
            images: (B, C, H, W) uint8.
            draws: (B, K) all draws of the images, those of the crop included.
            channels_last: give the result channels-last strides.

        Returns:
            (B, C, H, W) float32.
        """
        column = self.num_draws - self.flip - (self.brightness > 0)
        if self.flip:
            images = flip_horizontally(images, draws[:, column] < 0.5)
        levels = _as_float(images, channels_last)
        if self.brightness:
            levels = adjust_brightness(levels, 1 + self.brightness * (2 * draws[:, -1] - 1))
        return self._scaled(levels)

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
    """Copy to float32 in the wanted memory layout.

    The layout changes before the type does: four times fewer bytes move, and the large float
    tensor is allocated only once.
    """
    if channels_last:
        images = torch.stack(images.unbind(dim=1), dim=3).permute(0, 3, 1, 2)
        return images.to(torch.float32, copy=True)
    return images.to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def build_augmentation(
    name: Literal["none", "shift", "cifar", "imagenet"],
    mean: Sequence[float],
    std: Sequence[float],
    size: int,
) -> Augmentation:
    """Make a named augmentation.

    Args:
        name: ``none``; ``shift``: crop with padding 1; ``cifar``: crop with padding
            of an eighth of the side (4 at 32 pixels), flip,
            brightness factor U[1 - 63/255, 1 + 63/255]; ``imagenet``: random resized crop (area
            0.08 to 1, ratio 3/4 to 4/3) and flip.
        mean: normalisation mean per channel, of pixels in [0, 1].
        std: normalisation standard deviation per channel, positive.
        size: side of the images in pixels.

    Returns:
        The transform, with constants on the CPU.

    Reference:
        spec §1.2.
    """
    deviation = torch.tensor(std, dtype=torch.float64)[:, None, None]
    plain = Augmentation(
        scale=(1 / (255 * deviation)).float(),
        shift=(-torch.tensor(mean, dtype=torch.float64)[:, None, None] / deviation).float(),
    )
    if name == "shift":
        return replace(plain, padding=1)
    if name == "cifar":
        # The published 4 pixels at 32: on smaller images they would cut half of the object away.
        padding = max(1, size // 8)
        return replace(plain, padding=padding, flip=True, brightness=63 / 255)
    if name == "imagenet":
        return replace(plain, crop_size=size, flip=True)
    return plain
