"""Random resized crops in batches: boxes from uniform draws, and resampling as matrix products.

Shapes: B images, C channels, H×W source pixels, S×S result pixels, 22 draws per image.
"""

import math
from typing import final

import torch
from torch import Tensor


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
