"""Operations on whole batches of images: crop, flip, brightness, cutout, random resized crop.

Shapes: B images in a batch, C channels, H×W pixels, K uniform draws per image; a resized crop has
S×S pixels and takes 22 draws.

An operation is a small frozen object. ``num_draws`` is the number of uniform numbers that it needs
per image. It is called with the images and these numbers and holds no random state: equal draws
give equal images, in every batch and on every device.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override


@final
class CropDraws:
    """Layout of the uniform numbers that one random resized crop uses."""

    tries = 10
    """Attempts at a box that fits, before the fallback (torchvision's)."""
    num_draws = 2 * tries + 2
    """Columns: areas of the tries, aspect ratios of the tries, top, left."""


def crop_boxes(draws: Tensor, height: int, width: int) -> Tensor:
    """Compute crop boxes from uniform draws, distributed as in torchvision's RandomResizedCrop.

    Area ``a = HW · U[0.08, 1]``, ratio ``r = exp U[log 3/4, log 4/3]``, ``w = round √(a r)``,
    ``h = round √(a / r)``; the first of ten tries that fits in the image is placed uniformly. If
    none fits: the largest centred box whose ratio is within bounds. All tries are evaluated at
    once, so there is no loop and no synchronisation.

    Args:
        draws: (B, 22) uniform numbers in [0, 1), laid out as ``CropDraws``.
        height: source height in pixels, of every image.
        width: source width in pixels, of every image.

    Returns:
        (B, 4) float64 whole numbers: top, left, height, width of each box.
    """
    draws = draws.double()
    tries = CropDraws.tries
    area = height * width * (0.08 + 0.92 * draws[:, :tries])
    low, high = math.log(3 / 4), math.log(4 / 3)
    ratio = (low + (high - low) * draws[:, tries : 2 * tries]).exp()
    widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(dim=1, keepdim=True)
    found = fits.any(dim=1)
    whole_width, whole_height = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    box_width = widths.gather(1, first).squeeze(1).where(found, whole_width)
    box_height = heights.gather(1, first).squeeze(1).where(found, whole_height)
    room_y, room_x = height - box_height, width - box_width
    random_top = torch.minimum((draws[:, -2] * (room_y + 1)).floor(), room_y)
    random_left = torch.minimum((draws[:, -1] * (room_x + 1)).floor(), room_x)
    top = random_top.where(found, (room_y / 2).floor())
    left = random_left.where(found, (room_x / 2).floor())
    return torch.stack([top, left, box_height, box_width], dim=1)


def resized_crop(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Crop a box of each image and resize it to ``size``, bilinear with antialiasing.

    ``out = A_y · image · A_xᵀ`` with interpolation matrices per image, so the crop comes before the
    resize exactly as in torchvision; PIL and torchvision round the result to whole grey levels,
    this function does not (a difference below one level).

    Args:
        images: (B, C, H, W) uint8 or float.
        boxes: (B, 4) top, left, height, width in pixels.
        size: side S of the result in pixels.

    Returns:
        (B, C, S, S) float32 in the range of the input.
    """
    num_images, channels, height, width = images.shape
    top, left, box_height, box_width = boxes.float().unbind(dim=1)
    along_y = _interpolation(top, box_height, height, size)
    along_x = _interpolation(left, box_width, width, size)
    rows = images.reshape(num_images, channels * height, width).float()
    narrowed = torch.bmm(rows, along_x.transpose(1, 2)).view(num_images, channels, height, size)
    return torch.einsum("bsh,bchx->bcsx", along_y, narrowed)


def _interpolation(start: Tensor, length: Tensor, source: int, size: int) -> Tensor:
    """Return weights (B, S, source) of a triangle filter over pixels start..start + length - 1."""
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    pixel = torch.arange(source, device=start.device) + 0.5
    centre = start + (torch.arange(size, device=start.device)[None, :, None] + 0.5) * scale
    weight = (1 - (pixel - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weight = weight * ((pixel > start) & (pixel < start + length))
    return weight / weight.sum(dim=2, keepdim=True)


class Operation(ABC):
    """A random change of a batch of images."""

    takes_levels: ClassVar[bool] = False
    """True if it changes float levels in place. At the end of a list it gets floats, which saves a
    conversion to uint8 before they are normalised."""
    plans_on_cpu: ClassVar[bool] = False
    """True if it decides on the CPU which image gets which change. With draws on a GPU, the CPU
    would have to wait."""

    @property
    @abstractmethod
    def num_draws(self) -> int:
        """Uniform numbers K per image."""

    @abstractmethod
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Change each image by its own draws.

        Args:
            images: (B, C, H, W) uint8, or float levels 0..255.
            draws: (B, K) uniform numbers in [0, 1), on the CPU or on the images' device.

        Returns:
            (B, C, H, W) uint8 for uint8 images, but float32 from a random resized crop.
        """


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Move a small tensor of any shape to a device, without waiting for work on a GPU."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.contiguous().pin_memory().to(device, non_blocking=True)
    return values.to(device)


def whole_levels(images: Tensor) -> Tensor:
    """Return images (B, C, H, W) as uint8; float levels 0..255 are rounded."""
    return images.round().to(torch.uint8) if images.is_floating_point() else images


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


def cut_out(images: Tensor, rows: Tensor, columns: Tensor, side: int) -> Tensor:
    """Blacken a square of each image; parts of it outside the image have no effect.

    The square covers the rows ``y - side // 2`` to ``y - side // 2 + side - 1``, and the columns
    likewise.

    Args:
        images: (B, C, H, W) uint8 or float.
        rows: (B,) int64 in 0..H-1, the row y of each square's centre.
        columns: (B,) int64 in 0..W-1, the column of each square's centre.
        side: side of the square in pixels.

    Returns:
        (B, C, H, W) of the images' type.
    """
    height, width = images.shape[2:]
    down, across = (
        torch.arange(length, device=images.device) - (centre[:, None] - side // 2)
        for centre, length in ((rows, height), (columns, width))
    )
    in_rows, in_columns = ((offset >= 0) & (offset < side) for offset in (down, across))
    kept = ~(in_rows[:, :, None] & in_columns[:, None, :])
    return images * kept[:, None]


@final
@dataclass(frozen=True, kw_only=True)
class RandomCrop(Operation):
    """Shifts each image: crops a window of its own size out of the image with a black border.

    Draws: row, column; every window is equally likely.
    """

    padding: int
    """Width of the border in pixels, at least 1. Higher: larger shifts, objects may be cut off."""

    num_draws = 2

    @override
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        draws = on_device(draws, images.device)
        offsets = (draws * (2 * self.padding + 1)).long().clamp_(max=2 * self.padding)
        return crop_with_padding(images, offsets[:, 0], offsets[:, 1], self.padding)


@final
@dataclass(frozen=True, kw_only=True)
class RandomFlip(Operation):
    """Mirrors half of the images left to right. Draws: yes or no."""

    num_draws = 1

    @override
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        return flip_horizontally(images, on_device(draws[:, 0] < 0.5, images.device))


@final
@dataclass(frozen=True, kw_only=True)
class RandomBrightness(Operation):
    """Multiplies the grey levels of each image by a factor U[1 - b, 1 + b]. Draws: the factor."""

    change: float
    """Largest relative change b in (0, 1]. Higher: images get darker and brighter."""
    takes_levels: ClassVar[bool] = True

    num_draws = 1

    @override
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        factors = on_device(1 + self.change * (2 * draws[:, 0] - 1), images.device)
        if images.is_floating_point():
            return adjust_brightness(images, factors)
        return adjust_brightness(images.float(), factors).to(torch.uint8)


@final
@dataclass(frozen=True, kw_only=True)
class Cutout(Operation):
    """Blackens a square whose centre is uniform over all pixels. Draws: row, column.

    Source:
        DeVries and Taylor, arXiv 1708.04552.
    """

    side: int
    """Side of the square in pixels, at least 1. Higher: more of the object is hidden."""

    num_draws = 2

    @override
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        height, width = images.shape[2:]
        rows = (draws[:, 0] * height).long().clamp_(max=height - 1)
        columns = (draws[:, 1] * width).long().clamp_(max=width - 1)
        rows, columns = (on_device(centre, images.device) for centre in (rows, columns))
        return cut_out(images, rows, columns, self.side)


@final
@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(Operation):
    """Cuts a box of random area and shape and resizes it to a square of float levels.

    As the first operation of a list it is done while files are decoded (``files.FileImages``), at
    full resolution. Draws: those of ``crops.CropDraws``.
    """

    size: int
    """Side of the result in pixels."""

    num_draws = CropDraws.num_draws

    @override
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        boxes = crop_boxes(on_device(draws, images.device), *images.shape[2:])
        return resized_crop(images, boxes, self.size)
