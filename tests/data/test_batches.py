"""Batches: every image once, with its own draws, whatever holds the pixels."""

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from grace.data.augmentation import Augmentation, Operation, build_augmentation
from grace.data.batches import WantedRows, batch_sizes, epoch_batches
from grace.data.decoding import Reading
from grace.data.file_images import FileImages
from grace.data.images import LabelledImages, TensorImages, concatenate

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


RECORDED = {
    "files none": "a6ca7bccbcb27445",
    "epoch cifar 1 8 False": "2705348a5cda7429",
    "epoch cifar 1 8 True": "2639f7091eb9a4bb",
    "epoch cifar 3 32 False": "bd6acc28098e7903",
    "rows cifar 3 32 False": "83cd1ca1e674d25e",
    "once cifar 3 32 False": "231fe13a1a9622af",
    "epoch cifar 3 32 True": "0302685427699c1e",
    "rows cifar 3 32 True": "2edc26858c479097",
    "once cifar 3 32 True": "74786c32a6f47798",
    "files cifar": "7b223051bbb8bf5c",
}
"""Kind of batches, augmentation, channels, size and whether channels come last → hash of shapes,
strides, values and labels, recorded at commit e32f248."""


def made(n: int, size: int = 8, channels: int = 3) -> LabelledImages:
    shape = (n, channels, size, size)
    levels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded(0))
    return LabelledImages(TensorImages(levels), torch.arange(n))


def in_files(data: LabelledImages, folder: Path, size: int) -> LabelledImages:
    images = data.images.gather(torch.arange(len(data)))
    paths = [folder / f"{number}.png" for number in range(len(data))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return LabelledImages(FileImages(paths, Reading(3, size, shorter=size)), data.labels)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def epoch(data: LabelledImages, batch_size: int, name: str = "cifar") -> tuple[Tensor, Tensor]:
    augmentation = build_augmentation(name, MEAN, STD, 8)  # type: ignore[arg-type]
    batches = list(epoch_batches(data, batch_size, seeded(1), augmentation, seeded(2)))
    assert [len(labels) for _, labels in batches[:-1]] == [batch_size] * (len(batches) - 1)
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def test_an_epoch_is_a_permutation_with_a_smaller_last_batch() -> None:
    images, labels = epoch(made(23), 5, "none")
    assert sorted(labels.tolist()) == list(range(23))
    assert labels.tolist() == torch.randperm(23, generator=seeded(1)).tolist()
    augmentation = build_augmentation("none", MEAN, STD, 8)
    expected = augmentation.normalise(made(23).images.gather(labels))
    assert torch.equal(images, expected)


@pytest.mark.parametrize("held", ["memory", "files"])
@pytest.mark.parametrize("name", ["cifar", "autoaugment"])
def test_views_of_an_image_follow_each_other(tmp_path: Path, held: str, name: str) -> None:
    """11 images in batches of 5 images, three views of each."""
    data = made(11)
    data = in_files(data, tmp_path, 8) if held == "files" else data
    augmentation = build_augmentation(name, MEAN, STD, 8)  # type: ignore[arg-type]
    batches = list(epoch_batches(data, 5, seeded(1), augmentation, seeded(2), views=3))
    assert [len(labels) for _, labels in batches] == [15, 18]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    order = torch.randperm(11, generator=seeded(1))
    assert labels.view(11, 3).tolist() == [[place] * 3 for place in order.tolist()]
    # Image n of the epoch takes the draws 3n, 3n + 1 and 3n + 2.
    drawn = torch.rand(33, augmentation.num_draws, generator=seeded(2))
    for view in range(3):
        expected = augmentation.apply(made(11).images.gather(order), drawn[view::3])
        assert torch.equal(images[view::3], expected)
    assert not torch.equal(images[0::3], images[1::3])


@pytest.mark.parametrize("held", ["memory", "files"])
def test_processes_take_images_with_all_their_views(tmp_path: Path, held: str) -> None:
    """13 images in batches of 5: images 2 to 4 of each full batch, of the last three the last."""
    data = made(13)
    data = in_files(data, tmp_path, 8) if held == "files" else data
    augmentation = build_augmentation("cifar", MEAN, STD, 8)

    def batches(rows: WantedRows | None) -> list[tuple[Tensor, Tensor]]:
        found = epoch_batches(data, 5, seeded(1), augmentation, seeded(2), rows=rows, views=2)
        return list(found)

    mine = batches(lambda size: slice(2, 5))
    for (images, labels), (found, found_labels) in zip(batches(None), mine, strict=True):
        assert torch.equal(found, images[4:10])
        assert torch.equal(found_labels, labels[4:10])
    assert [len(labels) for _, labels in mine] == [6, 6, 2]


def test_every_view_from_files_is_a_crop_of_its_own(tmp_path: Path) -> None:
    files = in_files(made(5, size=24), tmp_path, 8)
    augmentation = build_augmentation("imagenet", MEAN, STD, 8)
    ((images, labels),) = epoch_batches(files, 5, seeded(1), augmentation, seeded(2), views=2)
    order = torch.randperm(5, generator=seeded(1))
    drawn = torch.rand(10, augmentation.num_draws, generator=seeded(2))
    assert isinstance(files.images, FileImages)
    crops = files.images.gather_crops(order.repeat_interleave(2), drawn[:, :22])
    flip = replace(augmentation, operations=augmentation.operations[1:])
    assert torch.equal(images, flip.apply(crops, drawn[:, 22:]))
    assert labels.tolist() == order.repeat_interleave(2).tolist()
    assert not torch.equal(images[0::2], images[1::2])


@pytest.mark.parametrize(
    ("num_images", "batch_size", "sizes"),
    [
        (0, 4, []),
        (1, 4, [1]),
        (3, 4, [3]),
        (5, 4, [5]),
        (8, 4, [4, 4]),
        (9, 4, [4, 5]),
        (11, 4, [4, 4, 3]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_sizes_of_batches(num_images: int, batch_size: int, sizes: list[int]) -> None:
    assert batch_sizes(num_images, batch_size) == sizes


def test_large_batches_are_not_put_together() -> None:
    fetched: list[int] = []

    def noted(pixels: Tensor, _draws: Tensor) -> Tensor:
        fetched.append(len(pixels))
        return pixels

    plain = build_augmentation("none", MEAN, STD, 200)
    noting = replace(plain, operations=(Operation(num_draws=0, change=noted),))
    list(epoch_batches(made(10, size=200), 4, None, noting, None))
    assert fetched == [4, 4, 2]


def test_without_operations_batches_are_the_test_transform_in_order() -> None:
    augmentation = build_augmentation("cifar", MEAN, STD, 8)
    data, plain = made(11), replace(augmentation, operations=())
    batches = list(epoch_batches(data, 4, None, plain, None))
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(11))
    everything = torch.cat([images for images, _ in batches])
    assert torch.equal(everything, augmentation.normalise(data.images.gather(torch.arange(11))))


@pytest.mark.parametrize("in_front", [True, False])
def test_files_and_memory_joined_give_the_same_batches(tmp_path: Path, in_front: bool) -> None:
    data = made(13)
    files = in_files(data, tmp_path, 8)
    first, rest = torch.arange(6), torch.arange(6, 13)
    sources = (files, data) if in_front else (data, files)
    joined = concatenate([sources[0].subset(first), sources[1].subset(rest)])
    for found, expected in zip(epoch(joined, 4), epoch(data, 4), strict=True):
        assert torch.equal(found, expected)
    back = joined.subset(torch.tensor([12, 0, 7, 3]))
    assert back.labels.tolist() == [12, 0, 7, 3]
    expected_pixels = data.images.gather(torch.tensor([12, 0, 7, 3]))
    assert torch.equal(back.images.gather(torch.arange(4)), expected_pixels)


def test_random_crops_come_from_files_at_full_resolution(tmp_path: Path) -> None:
    # The same 24-pixel images cropped in memory and from files, given at 8 pixels.
    large = made(6, size=24)
    files = in_files(large, tmp_path, 8)
    augmentation = build_augmentation("imagenet", MEAN, STD, 8)
    ((from_files, labels),) = epoch_batches(files, 6, seeded(1), augmentation, seeded(2))
    drawn = torch.rand(6, augmentation.num_draws, generator=seeded(2))
    expected = augmentation.apply(large.images.gather(labels), drawn)
    # Within the level to which files are rounded.
    assert (from_files - expected).abs().max() < 1.01 / 255 / min(STD)
    # Exemplars in memory beside them are cropped within their 8 pixels.
    mixed = concatenate([files, made(3)])
    batches = list(epoch_batches(mixed, 4, seeded(1), augmentation, seeded(2)))
    assert [tuple(images.shape) for images, _ in batches] == [(4, 3, 8, 8), (5, 3, 8, 8)]


def test_an_abandoned_epoch_leaves_no_thread(tmp_path: Path) -> None:
    files = in_files(made(40), tmp_path, 8)
    augmentation = build_augmentation("cifar", MEAN, STD, 8)
    before = threading.active_count()
    batches = epoch_batches(files, 2, seeded(1), augmentation, seeded(2))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_a_file_that_breaks_during_an_epoch_is_named(tmp_path: Path) -> None:
    files = in_files(made(6), tmp_path, 8)
    (tmp_path / "3.png").write_bytes(b"")
    augmentation = build_augmentation("cifar", MEAN, STD, 8)
    with pytest.raises(ValueError, match=r"3\.png': the file is empty"):
        list(epoch_batches(files, 2, seeded(1), augmentation, seeded(2)))


def digest(batches: Iterable[tuple[Tensor, Tensor]]) -> str:
    found = hashlib.sha256()
    for images, labels in batches:
        found.update(str((tuple(images.shape), images.stride())).encode())
        found.update(images.contiguous().numpy().tobytes())
        found.update(labels.numpy().tobytes())
    return found.hexdigest()[:16]


def batches_of(
    kind: str, data: LabelledImages, augmentation: Augmentation, last: bool
) -> Iterable[tuple[Tensor, Tensor]]:
    if kind == "once":
        return epoch_batches(data, 7, None, augmentation, seeded(3), channels_last=last)
    rows = (lambda size: slice(1, 3)) if kind == "rows" else None
    return epoch_batches(data, 5, seeded(1), augmentation, seeded(2), channels_last=last, rows=rows)


@pytest.mark.parametrize("case", [case for case in RECORDED if not case.startswith("files")])
def test_batches_have_the_bits_of_before(case: str) -> None:
    kind, name, channels, size, last = case.split()
    count = int(channels)
    augmentation = build_augmentation(name, MEAN[:count], STD[:count], int(size))  # type: ignore[arg-type]
    data = made(23, int(size), count)
    assert digest(batches_of(kind, data, augmentation, last == "True")) == RECORDED[case]


@pytest.mark.parametrize("name", ["none", "cifar"])
def test_batches_from_files_have_the_bits_of_before(name: str, tmp_path: Path) -> None:
    data = in_files(made(13, 24), tmp_path, 16)
    augmentation = build_augmentation(name, MEAN, STD, 16)  # type: ignore[arg-type]
    found = epoch_batches(data, 4, seeded(1), augmentation, seeded(2), channels_last=True)
    assert digest(found) == RECORDED[f"files {name}"]
