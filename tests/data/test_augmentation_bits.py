"""Named lists give the bits that they gave before operations could be listed."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from grace.data.augmentation import Augmentation, build_augmentation
from grace.data.batches import augmented_batches, epoch_batches
from grace.data.decoding import Reading
from grace.data.file_images import FileImages
from grace.data.images import LabelledImages, TensorImages
from grace.settings.augmentation import AugmentationName

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


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(n: int, channels: int, size: int) -> LabelledImages:
    levels = torch.randint(
        0, 256, (n, channels, size, size), dtype=torch.uint8, generator=seeded(0)
    )
    return LabelledImages(TensorImages(levels), torch.arange(n))


def in_files(data: LabelledImages, folder: Path, size: int) -> LabelledImages:
    paths = [folder / f"{number}.png" for number in range(len(data))]
    for path, image in zip(paths, data.images.gather(torch.arange(len(data))), strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return LabelledImages(FileImages(paths, Reading(3, size, shorter=size)), data.labels)


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
        return augmented_batches(data, 7, augmentation, seeded(3), channels_last=last)
    rows = (lambda size: slice(1, 3)) if kind == "rows" else None
    return epoch_batches(data, 5, seeded(1), augmentation, seeded(2), channels_last=last, rows=rows)


@pytest.mark.parametrize("case", [case for case in RECORDED if not case.startswith("files")])
def test_batches_have_the_bits_of_before(case: str) -> None:
    kind, name, channels, size, last = case.split()
    count = int(channels)
    augmentation = build_augmentation(name, MEAN[:count], STD[:count], int(size))  # type: ignore[arg-type]
    data = made(23, count, int(size))
    assert digest(batches_of(kind, data, augmentation, last == "True")) == RECORDED[case]


@pytest.mark.parametrize("name", ["none", "cifar"])
def test_batches_from_files_have_the_bits_of_before(name: AugmentationName, tmp_path: Path) -> None:
    data = in_files(made(13, 3, 24), tmp_path, 16)
    augmentation = build_augmentation(name, MEAN, STD, 16)
    found = epoch_batches(data, 4, seeded(1), augmentation, seeded(2), channels_last=True)
    assert digest(found) == RECORDED[f"files {name}"]
