"""Every image change against torchvision's, on every magnitude bin and both signs."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
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
    blend,
    change_images,
    grey_levels,
    is_signed,
    magnitude_bins,
    move_pixels,
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


def test_magnitudes_worked_by_hand() -> None:
    bins = magnitude_bins(10, 33, 331)
    assert bins["translate_x"][9] == 150
    assert bins["translate_y"][9] == pytest.approx(150 / 331 * 33)
    assert bins["shear_x"][3] == pytest.approx(0.1)
    assert bins["rotate"][6] == pytest.approx(20)
    assert bins["contrast"][1] == pytest.approx(0.1)
    # 8 - round(bin / 2.25)
    assert bins["posterize"] == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert bins["solarize"][3] == pytest.approx(170)


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


def test_shears_leave_the_top_left_corner_where_it_is() -> None:
    image = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4)
    # x' = x + 0.3·y about the corner: row 1.5 shifts by 0.45, row 2.5 by 0.75, row 3.5 by 1.05.
    found = move_pixels("shear_x", image, [0.3], 0)
    assert found[0, 0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [10, 11, 12, 0], [14, 15, 16, 0]]
    down = move_pixels("shear_y", image.mT.contiguous(), [0.3], 0)
    assert torch.equal(down, found.mT)


def test_translations_move_whole_pixels_and_fill() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    right, left = (move_pixels("translate_x", image, [by], 50)[0, 0] for by in (1.9, -1.9))
    assert right.tolist() == [[50, 1, 2], [50, 4, 5], [50, 7, 8]]
    assert left.tolist() == [[2, 3, 50], [5, 6, 50], [8, 9, 50]]
    down = move_pixels("translate_y", image, [2.0], 50)[0, 0]
    assert down.tolist() == [[50, 50, 50], [50, 50, 50], [1, 2, 3]]


def test_positive_rotations_are_counter_clockwise() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    found = move_pixels("rotate", image, [90.0], 0)[0, 0]
    assert found.tolist() == [[3, 6, 9], [2, 5, 8], [1, 4, 7]]


def test_blending_worked_by_hand() -> None:
    images = torch.tensor([100, 200, 10], dtype=torch.uint8).view(3, 1, 1, 1)
    # 1.5·100 - 0.5·50 = 125; 0.5·200 + 0.5·50 = 125; 1.9·10 - 0.9·50 < 0.
    found = blend(images, torch.full((3, 1, 1, 1), 50.0), [0.5, -0.5, 0.9])
    assert found.flatten().tolist() == [125, 125, 0]
    colours = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)
    # 0.2989·10 + 0.587·20 + 0.114·30 = 18.149
    assert grey_levels(colours).flatten().tolist() == [18]


def test_equalizing_spreads_levels_by_their_counts() -> None:
    # 510 pixels below the brightest level: (510 // 255) = 2 per level of the result.
    levels = torch.tensor([5] * 102 + [6] * 408 + [9] * 2).to(torch.uint8)
    found = CHANGES["equalize"](levels.view(1, 1, 16, 32), [0.0], 0).flatten()
    # (0 + 1) // 2, (102 + 1) // 2 and (510 + 1) // 2.
    assert found.unique_consecutive().tolist() == [0, 51, 255]


def by_pil(name: str, image: Image.Image, magnitude: float) -> Image.Image:
    """PIL's operation, which the policies were published with."""
    factor = 1 + magnitude
    if name in ("brightness", "colour", "contrast"):
        kinds = {"brightness": "Brightness", "colour": "Color", "contrast": "Contrast"}
        changed: Image.Image = getattr(ImageEnhance, kinds[name])(image).enhance(factor)
        return changed
    if name == "posterize":
        return ImageOps.posterize(image, int(magnitude))
    if name == "solarize":
        return ImageOps.solarize(image, int(magnitude))
    return {"equalize": ImageOps.equalize, "invert": ImageOps.invert}[name](image)


@pytest.mark.parametrize(
    ("name", "magnitude", "apart"),
    [
        ("brightness", -0.3, 1.01),
        ("brightness", 0.6, 1.01),
        # Grey levels are rounded, and weigh the colours, a little otherwise.
        ("colour", 0.5, 1.6),
        ("contrast", -0.4, 1.6),
        ("posterize", 4.0, 0.0),
        ("solarize", 100.0, 0.0),
        ("equalize", 0.0, 0.0),
        ("invert", 0.0, 0.0),
    ],
)
def test_changes_of_levels_are_pils(name: str, magnitude: float, apart: float) -> None:
    images = pictures(3, 32, 32)
    found = CHANGES[name](images, [magnitude] * len(images), 0)
    for image, result in zip(images, found, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        expected = np.asarray(by_pil(name, picture, magnitude)).astype(float)
        gap = np.abs(result.permute(1, 2, 0).numpy() - expected)
        assert gap.max() <= apart
