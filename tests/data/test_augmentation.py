"""Every augmentation, image by image, against torchvision with the same parameters."""

import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as tv

from grace.data.augmentation import Operation, build_augmentation, build_operations, cut_out, flip
from grace.data.image_changes import NUM_CROP_DRAWS, crop_boxes, resized_crop

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


def random_images(n: int, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    source = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8, generator=source)


def operation(text: str, size: int = 32) -> Operation:
    (made,) = build_operations((text,), size)
    return made


def draws(n: int, k: int) -> Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(1))


def test_cifar_augmentation_equals_the_torchvision_pipeline() -> None:
    images, drawn = random_images(64), draws(64, 4)
    augmentation = build_augmentation("cifar", MEAN, STD, 32)
    assert augmentation.num_draws == 4
    found = augmentation.apply(images, drawn)
    for image, (row, column, mirror, brightness), result in zip(
        images, drawn.tolist(), found, strict=True
    ):
        expected = tv.pad(tv.to_pil_image(image), [4] * 4)
        expected = tv.crop(expected, int(row * 9), int(column * 9), 32, 32)
        expected = tv.hflip(expected) if mirror < 0.5 else expected
        factor = 1 - 63 / 255 + brightness * 2 * 63 / 255
        expected = tv.to_tensor(tv.adjust_brightness(expected, factor))
        expected = tv.normalize(expected, MEAN, STD)
        # One grey level apart where f · x is a whole number but for rounding, else equal.
        different = (result - expected).abs() > 1e-5
        assert different.float().mean() < 0.001
        assert (result - expected).abs().max() < 1 / 255 / min(STD) + 1e-5


@pytest.mark.parametrize(
    "name", ["none", "shift", "cifar", "imagenet", "autoaugment", "randaugment"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_strides_only(name: str, channels: int) -> None:
    images = random_images(7, channels=channels)
    before = images.clone()
    augmentation = build_augmentation(name, MEAN[:channels], STD[:channels], 32)  # type: ignore[arg-type]
    drawn = draws(7, augmentation.num_draws)
    plain, strided = (augmentation.apply(images, drawn, last) for last in (False, True))
    assert torch.equal(plain, strided)
    assert plain.is_contiguous()
    assert strided.is_contiguous(memory_format=torch.channels_last)
    normalised = augmentation.normalise(images, True)
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(normalised, augmentation.normalise(images))
    assert torch.equal(images, before)


@pytest.mark.parametrize("size", [16, 40, 64])
def test_resized_crop_equals_torchvision(size: int) -> None:
    images = random_images(20, height=40, width=56)
    boxes = crop_boxes(draws(20, NUM_CROP_DRAWS), 40, 56)
    boxes[0] = torch.tensor([0, 0, 40, 56])
    flips = torch.arange(20) % 2 == 0
    found = flip(resized_crop(images, boxes, size), 0.9 - flips.float()[:, None])
    for image, box, mirrored, result in zip(
        images, boxes.int().tolist(), flips.tolist(), found, strict=True
    ):
        bilinear = InterpolationMode.BILINEAR
        expected = tv.resized_crop(image.float(), *box, [size, size], bilinear, antialias=True)
        expected = tv.hflip(expected) if mirrored else expected
        assert torch.allclose(result, expected, atol=2e-3)
        on_pil = tv.resized_crop(tv.to_pil_image(image), *box, [size, size], bilinear)
        on_pil = tv.pil_to_tensor(tv.hflip(on_pil) if mirrored else on_pil)
        # PIL rounds to whole levels after each of its two passes.
        assert (result - on_pil.float()).abs().max() <= 1.01


def test_crop_boxes_are_distributed_as_torchvisions() -> None:
    n, height, width = 4000, 50, 70
    torch.manual_seed(0)
    image = Image.new("L", (width, height))
    reference = torch.tensor(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)]
    ).double()
    found = crop_boxes(draws(n, NUM_CROP_DRAWS), height, width)

    def summary(boxes: Tensor) -> Tensor:
        top, left, tall, wide = boxes.unbind(1)
        room_y, room_x = (height - tall).clamp(min=1), (width - wide).clamp(min=1)
        return torch.stack(
            [tall * wide / (height * width), (wide / tall).log(), top / room_y, left / room_x], 1
        )

    ours, theirs = summary(found), summary(reference)
    error = (ours.var(0) / n + theirs.var(0) / n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all()
    assert (ours.std(0) / theirs.std(0) - 1).abs().max() < 0.06


def test_crop_boxes_worked_by_hand_and_in_bounds() -> None:
    # Area fraction .08 + .92·0.5 = .54 of 100·100, ratio exp(0) = 1: side √5400 = 73.48 → 73.
    drawn = torch.full((1, NUM_CROP_DRAWS), 0.5)
    drawn[0, -2:] = torch.tensor([0.0, 0.99])
    assert crop_boxes(drawn, 100, 100).tolist() == [[0, 27, 73, 73]]
    top, left, tall, wide = crop_boxes(draws(500, NUM_CROP_DRAWS), 9, 30).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (tall >= 1).all()
    assert (top + tall <= 9).all()
    assert (left + wide <= 30).all()


def test_a_box_that_never_fits_falls_back_to_the_centre() -> None:
    # Of 10×1000 pixels no box of ratio ≤ 4/3 with ≥ 8 % of the area fits: height 10, width
    # round(10·4/3) = 13, left (1000 - 13) // 2 = 493, as torchvision.
    boxes = crop_boxes(draws(3, NUM_CROP_DRAWS), 10, 1000)
    assert boxes.tolist() == [[0, 493, 10, 13]] * 3
    assert crop_boxes(draws(1, NUM_CROP_DRAWS), 1000, 10).tolist() == [[493, 0, 13, 10]]


@pytest.mark.parametrize(("height", "width", "side"), [(8, 8, 4), (9, 12, 6), (8, 8, 16)])
def test_cutout_equals_the_published_code(height: int, width: int, side: int) -> None:
    images = random_images(height * width, height=height, width=width).clamp(min=1)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centres = torch.stack([(rows.flatten() + 0.5) / height, (columns.flatten() + 0.5) / width], 1)
    found = cut_out(images, centres, side=side)
    expected = images.clone()
    for image, y, x in zip(
        expected, rows.flatten().tolist(), columns.flatten().tolist(), strict=True
    ):
        # DeVries and Taylor: y ± side // 2, clipped, the last row left out.
        low, high = (max(0, min(height, y + by)) for by in (-side // 2, side // 2))
        left, right = (max(0, min(width, x + by)) for by in (-side // 2, side // 2))
        image[:, low:high, left:right] = 0
    assert torch.equal(found, expected)


def test_an_odd_hole_has_its_centre_in_the_middle() -> None:
    image = torch.full((1, 1, 5, 5), 9, dtype=torch.uint8)
    found = cut_out(image, torch.tensor([[0.5, 0.99]]), side=3)[0, 0]
    assert (found == 0).nonzero().tolist() == [[y, x] for y in (1, 2, 3) for x in (3, 4)]
