"""Which image gets which change, against torchvision's policies and by count."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import autoaugment as reference
from torchvision.transforms import functional as tv

from grace.data.augmentation import (
    RANDAUGMENT_CHANGES,
    build_augmentation,
    build_operations,
    cifar10_policy,
)
from grace.data.image_changes import CHANGES, change_images, is_signed, magnitude_bins

POLICY = reference.AutoAugment(reference.AutoAugmentPolicy.CIFAR10)._get_policies(
    reference.AutoAugmentPolicy.CIFAR10
)
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


NAMES = (
    "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert",
)  # fmt: skip
"""Torchvision's."""
SIZES = [(32, 32), (8, 8), (28, 40), (64, 64)]


def ours(name: str) -> str:
    """Our name of torchvision's operation: TranslateX → translate_x, Color → colour."""
    if name[-1] in "XY":
        return f"{name[:-1].lower()}_{name[-1].lower()}"
    return "colour" if name == "Color" else name.lower()


def change(text: str, images: Tensor, drawn: Tensor) -> Tensor:
    (operation,) = build_operations((text,), 32)
    return operation.change(images, drawn)


def draws(n: int, k: int, seed: int = 1) -> Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed))


def pictures(n: int, channels: int = 3, size: int = 32) -> Tensor:
    """Smooth images with some noise."""
    source = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, channels, 4, 4, generator=source)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    noise = torch.rand(n, channels, size, size, generator=source)
    return (220 * smooth + 35 * noise).to(torch.uint8)


def apply_theirs(image: Tensor, name: str, magnitude: float, fill: int) -> Tensor:
    levels = [float(fill)] * len(image)
    return reference._apply_op(image, name, magnitude, InterpolationMode.NEAREST, levels)


def autoaugmented(image: Tensor, row: list[float]) -> Tensor:
    """Torchvision's AutoAugment of one image with the draws: policy, two chances, two signs."""
    space = reference.AutoAugment()._augmentation_space(10, image.shape[1:])
    for place, (name, probability, magnitude_id) in enumerate(POLICY[int(row[0] * 25)]):
        if row[1 + place] < probability:
            magnitudes, signed = space[name]
            magnitude = 0.0 if magnitude_id is None else float(magnitudes[magnitude_id])
            sign = -1 if signed and row[3 + place] < 0.5 else 1
            image = apply_theirs(image, name, sign * magnitude, 128)
    return image


def odd_pictures(channels: int, height: int, width: int) -> Tensor:
    """Noise, smooth and dull images, few levels, and one level only."""
    source = torch.Generator().manual_seed(height + width)
    noise = torch.randint(0, 256, (3, channels, height, width), generator=source)
    coarse = torch.rand(2, channels, 4, 4, generator=source) * 255
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    few = torch.randint(0, 4, (1, channels, height, width), generator=source) * 60
    flat = torch.full((1, channels, height, width), 93)
    return torch.cat([noise, smooth, smooth / 3 + 60, few, flat]).to(torch.uint8)


def cases() -> list[tuple[str, int, int]]:
    """Every operation with every bin and sign; bin 0 where it has none."""
    found = []
    for name in NAMES:
        bins = range(10) if ours(name) in magnitude_bins(10, 32, 32) else (0,)
        signs = (1, -1) if is_signed(ours(name)) else (1,)
        found += [(name, place, sign) for place in bins for sign in signs]
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_changes_equal_torchvisions(size: tuple[int, int], channels: int) -> None:
    images = odd_pictures(channels, *size)
    before = images.clone()
    for name, place, sign in cases():
        bins = magnitude_bins(10, *size).get(ours(name), (0.0,))
        magnitude = sign * bins[place if len(bins) > 1 else 0]
        found = CHANGES[ours(name)](images, [magnitude] * len(images), 128)
        expected = torch.stack([apply_theirs(x, name, magnitude, 128) for x in images])
        where = f"{name} bin {place} sign {sign}"
        assert found.dtype == torch.uint8, where
        assert torch.equal(found, expected), where
    assert torch.equal(images, before)


@pytest.mark.parametrize("bins", [10, 31])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_magnitudes_equal_torchvisions(bins: int, size: tuple[int, int]) -> None:
    spaces = [
        reference.AutoAugment()._augmentation_space(bins, size),
        reference.RandAugment()._augmentation_space(bins, size),
    ]
    found = magnitude_bins(bins, *size)
    for space in spaces:
        for name, (magnitudes, signed) in space.items():
            if name == "Identity":
                continue
            assert is_signed(ours(name)) == signed
            assert (
                list(found.get(ours(name), []))
                == magnitudes.flatten()[: bins * (magnitudes.ndim > 0)].tolist()
            )
    assert set(map(ours, NAMES)) == set(CHANGES)


def test_images_get_their_own_change_and_none_leaves_them() -> None:
    images = odd_pictures(3, 32, 32)
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
    by_ours = {ours(name): name for name in NAMES}
    for image, change, result in zip(images, changes, found, strict=True):
        expected = image
        if change is not None:
            expected = apply_theirs(image, by_ours[change[0]], change[1], 7)
        assert torch.equal(result, expected)
    assert torch.equal(change_images(images, [None] * 9, 7), images)


def differing(found: Tensor, expected: Tensor) -> float:
    return float((found != expected).float().mean())


def test_the_policy_is_the_published_one() -> None:
    """Two of its 25 rows as the paper's appendix prints them."""
    policy = cifar10_policy()
    assert len(policy) == 25
    assert policy[1] == (("rotate", 0.7, 2), ("translate_x", 0.3, 9))
    assert policy[10] == (("colour", 0.7, 7), ("translate_x", 0.5, 8))
    assert {step[0] for pair in policy for step in pair} <= CHANGES.keys()


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 32), (3, 8), (1, 45)])
def test_autoaugment_equals_torchvisions_for_the_same_choices(channels: int, size: int) -> None:
    images, drawn = pictures(200, channels, size), draws(200, 5)
    found = change("autoaugment", images, drawn)
    expected = [autoaugmented(*pair) for pair in zip(images, drawn.tolist(), strict=True)]
    assert found.dtype == torch.uint8
    # Only sources just between two pixels may differ.
    assert differing(found, torch.stack(expected)) < 0.01
    assert differing(found, images) > 0.3


def test_randaugment_equals_torchvisions_for_the_same_choices() -> None:
    images, drawn = pictures(150), draws(150, 4)
    space = reference.RandAugment()._augmentation_space(31, (32, 32))
    names = list(space)
    assert tuple(ours(name) for name in names) == RANDAUGMENT_CHANGES
    found = change("randaugment", images, drawn)
    for image, row, result in zip(images, drawn.tolist(), found, strict=True):
        expected = image
        for which, sign in (row[:2], row[2:]):
            name = names[int(which * 14)]
            magnitudes, signed = space[name]
            magnitude = float(magnitudes[9]) if magnitudes.ndim else 0.0
            magnitude *= -1 if signed and sign < 0.5 else 1
            expected = apply_theirs(expected, name, magnitude, 0)
        assert differing(result, expected) < 0.02


def test_one_change_alone_takes_all_bins_up_to_the_largest() -> None:
    images = pictures(4)
    # Bins 0, 1, 2 are 0, 3⅓ and 6⅔ degrees.
    drawn = torch.tensor([[0.0, 0.9], [0.34, 0.9], [0.99, 0.9], [0.99, 0.1]])
    found = change("rotate:2", images, drawn)
    expected = [
        tv.rotate(image, angle, fill=[128.0] * 3)
        for image, angle in zip(images, (0.0, 10 / 3, 20 / 3, -20 / 3), strict=True)
    ]
    assert differing(found, torch.stack(expected)) < 0.01
    assert [own.num_draws for own in build_operations(("rotate", "posterize"), 32)] == [2, 1]
    last = change("posterize", images, torch.full((4, 1), 0.95))
    assert torch.equal(last, images & 0b11110000)


def test_a_change_without_magnitude_meets_its_share() -> None:
    images = pictures(4)
    found = change("invert:0.25", images, torch.tensor([[0.1], [0.24], [0.26], [0.9]]))
    assert torch.equal(found, torch.cat([255 - images[:2], images[2:]]))


@pytest.mark.parametrize("name", ["cifar", "imagenet", "autoaugment", "randaugment"])
def test_images_have_their_own_draws_whatever_the_batch(name: str) -> None:
    images = pictures(40)
    augmentation = build_augmentation(name, MEAN, STD, 32)  # type: ignore[arg-type]
    drawn = draws(40, augmentation.num_draws)
    alone = [augmentation.apply(images[i : i + 1], drawn[i : i + 1]) for i in range(40)]
    assert torch.equal(augmentation.apply(images, drawn), torch.cat(alone))


def test_the_whole_list_equals_the_published_pipeline() -> None:
    """Crop, flip and brightness by torchvision on PIL, AutoAugment, a black hole, normalised."""
    augmentation = build_augmentation("autoaugment", MEAN, STD, 32)
    assert augmentation.num_draws == 2 + 1 + 1 + 5 + 2
    images, drawn = pictures(120), draws(120, 11)
    found = augmentation.apply(images, drawn)
    wrong = 0
    for image, row, result in zip(images, drawn.tolist(), found, strict=True):
        expected = tv.pad(tv.to_pil_image(image), [4] * 4)
        expected = tv.crop(expected, int(row[0] * 9), int(row[1] * 9), 32, 32)
        expected = tv.hflip(expected) if row[2] < 0.5 else expected
        expected = tv.adjust_brightness(expected, 1 - 63 / 255 + row[3] * 2 * 63 / 255)
        expected = autoaugmented(tv.pil_to_tensor(expected), row[4:9]) / 255
        y, x = int(row[9] * 32), int(row[10] * 32)
        expected[:, max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = 0
        expected = tv.normalize(expected, MEAN, STD)
        different = ((result - expected).abs() > 1e-5).float().mean()
        # Brightness one level off, where f·x is a whole number but for rounding, can move the
        # table of a whole image.
        wrong += bool(different > 0.01)
    assert wrong <= 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["cifar", "autoaugment", "randaugment"])
def test_a_gpu_gives_the_same_images(name: str) -> None:
    augmentation = build_augmentation(name, MEAN, STD, 32)  # type: ignore[arg-type]
    images, drawn = pictures(500), draws(500, augmentation.num_draws)
    expected = augmentation.apply(images, drawn)
    there = augmentation.to(torch.device("cuda"))
    for given in (drawn, drawn.cuda()):
        found = there.apply(images.cuda(), given).cpu()
        # One level where a float32 mean or product rounds differently, on few pixels.
        different = (found - expected).abs() > 1e-5
        assert different.float().mean() < 0.002
