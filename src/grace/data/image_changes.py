"""Changes of the pixels of whole batches: resized crops, and those of AutoAugment.

Shapes: B images in a batch, M of them with one change, C channels (1 or 3), H×W pixels; a resized
crop has S×S pixels.

Nothing is drawn here: equal arguments give equal images, in every batch. On the CPU, the changes of
AutoAugment equal torchvision's functions for tensors to the bit, but each image of a batch has its
own magnitude.

Source:
    Cubuk et al., AutoAugment, arXiv 1805.09501; ``torchvision.transforms.autoaugment``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

TRIES = 10
"""Attempts at a crop box that fits, before the fallback (torchvision's)."""
NUM_CROP_DRAWS = 2 * TRIES + 2
"""Uniform numbers of one random resized crop: areas of the tries, their ratios, top, left."""


def crop_boxes(draws: Tensor, height: int, width: int) -> Tensor:
    """Compute crop boxes from uniform draws, distributed as in torchvision's RandomResizedCrop.

    Area ``a = HW · U[0.08, 1]``, ratio ``r = exp U[log 3/4, log 4/3]``, ``w = round √(a r)``,
    ``h = round √(a / r)``; the first of ten tries that fits in the image is placed uniformly. If
    none fits: the largest centred box whose ratio is within bounds. All tries are evaluated at
    once, so there is no loop and no synchronisation.

    Args:
        draws: (B, 22) uniform numbers in [0, 1); see ``NUM_CROP_DRAWS``.
        height: source height in pixels, of every image.
        width: source width in pixels, of every image.

    Returns:
        (B, 4) float64 whole numbers: top, left, height, width of each box.
    """
    draws = draws.double()
    area = height * width * (0.08 + 0.92 * draws[:, :TRIES])
    low, high = math.log(3 / 4), math.log(4 / 3)
    ratio = (low + (high - low) * draws[:, TRIES : 2 * TRIES]).exp()
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


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; to a GPU through pinned memory, so that the copy overlaps."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.contiguous().pin_memory().to(device, non_blocking=True)
    return values.to(device)


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
def magnitude_bins(num_bins: int, height: int, width: int) -> Mapping[str, Sequence[float]]:
    """List the magnitudes of every change that has one, from the weakest to the strongest.

    Args:
        num_bins: number of magnitudes, at least 2: 10 in AutoAugment, 31 in RandAugment.
        height: height of the images in pixels; vertical translations are shares of it.
        width: width of the images in pixels.

    Returns:
        By name: shears as a slope; translations in pixels; rotations in degrees; brightness,
        colour, contrast and sharpness as m, where the factor is 1 ± m; posterize as remaining bits;
        solarize as the level from which pixels are inverted.
    """
    last = {
        "shear_x": 0.3,
        "shear_y": 0.3,
        "translate_x": 150 / 331 * width,
        "translate_y": 150 / 331 * height,
        "rotate": 30,
        **dict.fromkeys(("brightness", "colour", "contrast", "sharpness"), 0.9),
    }
    bits = [float(8 - round(place / ((num_bins - 1) / 4))) for place in range(num_bins)]
    return {
        **{name: torch.linspace(0, end, num_bins).tolist() for name, end in last.items()},
        "posterize": bits,
        "solarize": torch.linspace(255, 0, num_bins).tolist(),
    }


def is_signed(name: str) -> bool:
    """Return True if half of the images get the magnitude with a minus sign."""
    return name not in ("posterize", "solarize", "autocontrast", "equalize", "invert")


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
    red, green, blue = images.split(1, dim=1)
    levels: Tensor = (red * 0.2989).add_(green * 0.587).add_(blue * 0.114).floor_()
    return levels


def _brightness(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    return blend(images, torch.zeros_like(images), magnitudes)


def _colour(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    return images if images.shape[1] == 1 else blend(images, grey_levels(images), magnitudes)


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


def _per_image(values: Sequence[int], images: Tensor) -> Tensor:
    """Return one level per image, (M, 1, 1, 1) uint8, on the images' device."""
    levels = torch.tensor(values, dtype=torch.uint8)[:, None, None, None]
    return on_device(levels, images.device)


def _posterize(images: Tensor, magnitudes: Sequence[float], _fill: int) -> Tensor:
    return images & _per_image([256 - (1 << (8 - int(bits))) for bits in magnitudes], images)


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

    equalized: Tensor = functional.equalize(images)
    return equalized


def _invert(images: Tensor, _magnitudes: Sequence[float], _fill: int) -> Tensor:
    return ~images  # Of uint8: 255 - x.


_MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
CHANGES: Mapping[str, Callable[[Tensor, Sequence[float], int], Tensor]] = {
    **{name: partial(move_pixels, name) for name in _MOVES},
    "brightness": _brightness,
    "colour": _colour,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": _invert,
}
"""Changes by name; each takes images (M, C, H, W) uint8, M magnitudes and the fill level."""
