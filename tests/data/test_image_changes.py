"""Every image change against torchvision's, on every magnitude bin and both signs."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import (
    AutoAugment,
    AutoAugmentPolicy,
    RandAugment,
    _apply_op,
)

from grace.data.image_changes import (
    CHANGES,
    change_images,
    is_signed,
    magnitude_bins,
)

NAMES = {
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
    "Rotate": "rotate",
    "Brightness": "brightness",
    "Color": "colour",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
}
"""Ours by torchvision's."""
SIZES = [(32, 32), (8, 8), (28, 40), (64, 64)]


def pictures(channels: int, height: int, width: int) -> Tensor:
    """Noise, smooth waves, dull waves with a sharp edge, few levels, and one level only."""
    source = torch.Generator().manual_seed(height + width)
    noise = torch.randint(0, 256, (3, channels, height, width), generator=source)
    phase = torch.rand(4, channels, 3, generator=source) * 6
    y, x = torch.linspace(0, 3, height)[:, None], torch.linspace(0, 4, width)
    waves = torch.stack(
        [
            (x * (1 + c) + p[0]).sin() + (y + p[1]).cos() * (x - y + p[2]).sin()
            for image in phase
            for c, p in enumerate(image)
        ]
    )
    smooth = (127.5 + 60 * waves).clamp(0, 255).view(4, channels, height, width)
    smooth[2:] = smooth[2:] / 3 + 60
    smooth[2:, :, height // 3 :, : width // 2] += 70
    few = torch.randint(0, 4, (1, channels, height, width), generator=source) * 60
    flat = torch.full((1, channels, height, width), 93)
    return torch.cat([noise, smooth.long(), few, flat]).to(torch.uint8)


def theirs(images: Tensor, name: str, magnitude: float, fill: int) -> Tensor:
    """Torchvision's operation, image by image."""
    levels = [float(fill)] * images.shape[1]
    nearest = InterpolationMode.NEAREST
    return torch.stack([_apply_op(x, name, magnitude, nearest, levels) for x in images])


def cases() -> list[tuple[str, int, int]]:
    """Every operation with every bin and sign; bin 0 where it has none."""
    found = []
    for name, ours in NAMES.items():
        bins = range(10) if ours in magnitude_bins(10, 32, 32) else (0,)
        signs = (1, -1) if is_signed(ours) else (1,)
        found += [(name, place, sign) for place in bins for sign in signs]
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_changes_equal_torchvisions(size: tuple[int, int], channels: int) -> None:
    images = pictures(channels, *size)
    before = images.clone()
    for name, place, sign in cases():
        ours = NAMES[name]
        bins = magnitude_bins(10, *size).get(ours, (0.0,))
        magnitude = sign * bins[place if len(bins) > 1 else 0]
        found = CHANGES[ours](images, [magnitude] * len(images), 128)
        expected = theirs(images, name, magnitude, 128)
        where = f"{name} bin {place} sign {sign}"
        assert found.dtype == torch.uint8, where
        assert torch.equal(found, expected), where
    assert torch.equal(images, before)


@pytest.mark.parametrize("bins", [10, 31])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_magnitudes_equal_torchvisions(bins: int, size: tuple[int, int]) -> None:
    spaces = [
        AutoAugment(AutoAugmentPolicy.CIFAR10)._augmentation_space(bins, size),
        RandAugment()._augmentation_space(bins, size),
    ]
    found = magnitude_bins(bins, *size)
    for space in spaces:
        for name, (magnitudes, signed) in space.items():
            if name == "Identity":
                continue
            assert is_signed(NAMES[name]) == signed
            assert (
                list(found.get(NAMES[name], []))
                == magnitudes.flatten()[: bins * (magnitudes.ndim > 0)].tolist()
            )
    assert set(NAMES.values()) == set(CHANGES)


def test_images_get_their_own_change_and_none_leaves_them() -> None:
    images = pictures(3, 32, 32)
    changes = [
        ("rotate", 10.0),
        None,
        ("invert", 0.0),
        ("rotate", -20.0),
        ("posterize", 5.0),
        ("invert", 0.0),
        ("solarize", 100.0),
        ("posterize", 4.0),
        None,
    ]
    found = change_images(images, changes, 7)
    by_ours = {ours: name for name, ours in NAMES.items()}
    for image, change, result in zip(images, changes, found, strict=True):
        expected = image
        if change is not None:
            expected = theirs(image[None], by_ours[change[0]], change[1], 7)[0]
        assert torch.equal(result, expected)
    assert torch.equal(change_images(images, [None] * 9, 7), images)
