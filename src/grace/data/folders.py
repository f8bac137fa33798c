"""Folders of images as data sets of experiments, ImageNet-100, and the images of one update.

Shapes: N images, C channels, H×W pixels.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

import torch

from grace.base.errors import GraceError
from grace.base.machine import memory_bytes
from grace.base.words import in_bytes, printable
from grace.data.arrays import chosen_classes, first_of_each, held_out, imagenet_constants
from grace.data.decoders import Look, look_at_all
from grace.data.decoding import Reading
from grace.data.file_images import FileImages, file_digest
from grace.data.findings import Looks, judge_images, refuse_first, sound_tree
from grace.data.folder_tree import FolderTree, ImageFile
from grace.data.images import Dataset, Images, LabelledImages, TensorImages
from grace.data.scenario import class_order
from grace.data.sources import given_root
from grace.settings.augmentation import crops_at_random
from grace.settings.experiment import DataSettings


def load_folder(settings: DataSettings) -> Dataset:
    """Load the user's own folder of images; see ``folder_tree.scan`` for its layouts.

    Raises:
        GraceError: for the first thing that is wrong with the folder or a file.
    """
    reading = _reading(settings, "experiment")
    tree, notes = sound_tree(given_root(settings), reading)
    return _load(tree, settings, tree.root.resolve().name, tree.class_names, reading, notes)


def load_imagenet100(settings: DataSettings) -> Dataset:
    """Load 100 classes of an ImageNet folder, ``root/train/<synset>`` and ``root/val/<synset>``.

    Raises:
        GraceError: for the first thing that is wrong with the folder or a file.
    """
    reading = _reading(settings, "benchmark")
    tree, notes = sound_tree(given_root(settings), reading)
    if tree.test is None:
        raise GraceError(
            f"'{tree.root}' needs both train/<synset>/ and val/<synset>/",
            "sort the validation images into one folder per synset",
        )
    names = imagenet100_classes(tree.class_names, settings.class_list)
    dataset = _load(tree, settings, "imagenet100", names, reading, notes)
    if len(tree.class_names) == 100:
        note = "the folder has exactly 100 classes, which were taken as they are"
        dataset = replace(dataset, notes=[*dataset.notes, note])
    return dataset


def imagenet100_classes(
    synsets: Sequence[str], class_list: Literal["icarl", "sorted"]
) -> list[str]:
    """Choose the 100 classes of ImageNet-100.

    ``icarl``: those whose sorted position is among the first 100 entries of
    ``RandomState(1993).permutation(1000)``; ``sorted``: the first 100. The result is sorted,
    because the scenario decides the order of classes. A folder of 100 classes is used whole.

    Args:
        synsets: names of all class folders, sorted; 1000 or 100.
        class_list: which of the two lists in use.

    Raises:
        GraceError: for any other number of folders.

    Reference:
        docs/protocols.md#imagenet-100.
    """
    if len(synsets) == 100:
        return list(synsets)
    if len(synsets) != 1000:
        raise GraceError(
            f"an ImageNet folder has 1000 classes (or the 100 chosen ones), not {len(synsets)}",
            "set data.root to the folder that holds train/ and val/",
        )
    if class_list == "sorted":
        return list(synsets[:100])
    return [synsets[place] for place in sorted(class_order(1000, 1993)[:100])]


def _reading(settings: DataSettings, use: Literal["experiment", "benchmark"]) -> Reading:
    return Reading(
        channels=settings.channels or 3,
        size=settings.image_size,
        fit=settings.fit,
        max_pixels=settings.max_pixels,
        use=use,
        skip_unreadable=settings.skip_unreadable,
        skip_duplicates=settings.skip_duplicates,
    )


def _load(
    tree: FolderTree,
    settings: DataSettings,
    name: str,
    class_names: Sequence[str],
    reading: Reading,
    notes: Sequence[str],
) -> Dataset:
    names = [class_names[label] for label in chosen_classes(class_names, settings)]
    parts = _split(tree, settings, names)
    streams = _streams(settings, sum(map(len, parts)) * reading.channels)
    side = settings.image_size
    if streams and side is not None:
        # 256 to 224 where crops are drawn from the whole image, as ImageNet is tested.
        is_wide = crops_at_random(settings.augmentation)
        reading = replace(reading, shorter=side * 256 // 224 if is_wide else side)
    (train, test), found = _read(tree.root, parts, reading, streams=streams)
    labels = {name: label for label, name in enumerate(names)}
    mean, std = imagenet_constants(reading.channels)

    def labelled(part: Part) -> LabelledImages:
        own = torch.tensor([labels[file.class_name] for file in part.files])
        return LabelledImages(part.images, own)

    return Dataset(
        name=name,
        train=labelled(train),
        test=labelled(test),
        class_names=names,
        mean=mean,
        std=std,
        notes=[*notes, *found],
    )


def _split(
    tree: FolderTree, settings: DataSettings, names: Sequence[str]
) -> list[Sequence[ImageFile]]:
    """Choose training and test files by classes, held-out share and limits per class."""
    label = {name: place for place, name in enumerate(names)}
    train, test = (
        [file for file in tree.files(is_test) if file.class_name in label]
        for is_test in (False, True)
    )
    if tree.test is None:
        labels = [label[file.class_name] for file in train]
        places = held_out(labels, names, settings.test_fraction, settings.split_seed)
        test = [replace(train[place], is_test=True) for place in places[1]]
        train = [train[place] for place in places[0]]
    limits = (settings.max_train_per_class, settings.max_test_per_class)
    return [
        [files[place] for place in first_of_each([file.class_name for file in files], limit)]
        for files, limit in zip((train, test), limits, strict=True)
    ]


def _streams(settings: DataSettings, num_values: int, limit: int = 4 * 1024**3) -> bool:
    """Return True if images stay in files: by the setting, or above ``limit`` bytes of pixels.

    ``num_values`` are images times channels.
    """
    side = settings.image_size
    if settings.streaming == "auto":
        return side is not None and num_values * side * side > limit
    if settings.streaming and side is None:
        raise GraceError("images that are streamed need one size", "set data.image_size")
    return settings.streaming


@final
@dataclass(frozen=True, kw_only=True)
class UpdateFolder:
    """Images of one update, sorted by class name, then by file; test images are optional."""

    images: TensorImages
    labels: Sequence[str]
    """Class name of each image, in Unicode's composed form."""
    paths: Sequence[Path]
    test_images: TensorImages | None
    test_labels: Sequence[str]
    notes: Sequence[str]
    """Findings that are not errors, such as images that were left out."""


def load_update(root: Path, reading: Reading) -> UpdateFolder:
    """Load the images of one update.

    ``root`` has a layout of ``folder_tree.scan``; there may be test images of all classes, of some
    or of none. One class is enough. An image that is twice in a class is used once.

    Raises:
        GraceError: for the first thing that is wrong with the folder, a class name or an image.
    """
    tree, notes = sound_tree(root, reading)
    (train, test), found = _read(root, [tree.files(False), tree.files(True)], reading)
    assert isinstance(train.images, TensorImages)
    assert isinstance(test.images, TensorImages)
    return UpdateFolder(
        images=train.images,
        labels=[file.class_name for file in train.files],
        paths=[file.path for file in train.files],
        test_images=test.images if test.files else None,
        test_labels=[file.class_name for file in test.files],
        notes=[*notes, *found],
    )


@final
@dataclass(frozen=True)
class Part:
    """The used training or test images of a folder, and their files in the same order."""

    images: Images
    files: Sequence[ImageFile]


def _read(
    root: Path, parts: Sequence[Sequence[ImageFile]], reading: Reading, *, streams: bool = False
) -> tuple[list[Part], list[str]]:
    """Read the images of the training and the test part, and judge them.

    Images that are streamed stay in their files. Unreadable ones are then searched only if they are
    to be left out; otherwise duplicates are equal files.

    Returns:
        The used images of each part, and notes.

    Raises:
        GraceError: the first error found.
    """
    read, looks = (_stay_in_files if streams else _decoded)(parts, reading)
    files = [file for part in parts for file in part]
    findings, left_out = judge_images(root, files, looks, reading)
    refuse_first(findings, root)
    used: list[Part] = []
    start = 0
    for part, images in zip(parts, read, strict=True):
        places = range(start, start + len(part))
        readable = [place for place in places if isinstance(looks[place], Look)]
        rows = [row for row, place in enumerate(readable) if place not in left_out]
        if len(rows) < len(readable):
            images = images.subset(torch.tensor(rows, dtype=torch.int64))
        used.append(Part(images, [files[readable[row]] for row in rows]))
        start += len(part)
    return used, [finding.text for finding in findings]


def _decoded(
    parts: Sequence[Sequence[ImageFile]], reading: Reading
) -> tuple[Sequence[Images], Looks]:
    """Decode image files into memory; pixels of another size than the first one's are left out.

    Raises:
        GraceError: if the machine has no memory for them.
    """
    looks: list[Look | GraceError] = []
    held = [bytearray() for _ in parts]
    owners = [own for part, own in zip(parts, held, strict=True) for _ in part]
    paths = [file.path for part in parts for file in part]
    shape: tuple[int, ...] = (reading.channels, 1, 1)
    memory, taken = memory_bytes(), 0
    for path, own, one in zip(paths, owners, look_at_all(paths, reading), strict=True):
        if isinstance(one, GraceError):
            looks.append(one)
            continue
        look, pixels = one
        looks.append(look)
        shape = shape if taken else pixels.shape
        if pixels.shape == shape:
            own += pixels.data
            taken += pixels.size
            if memory is not None and taken > memory // 2:
                raise GraceError(
                    f"images of {shape[2]}×{shape[1]} pixels, as '{printable(str(path))}' has, "
                    f"take {in_bytes(taken)} of memory and more, too much for this machine",
                    "learn smaller or fewer images, or set data.image_size",
                )
    empty = torch.empty((0, *shape), dtype=torch.uint8)
    images = [
        TensorImages(torch.frombuffer(own, dtype=torch.uint8).view(-1, *shape) if own else empty)
        for own in held
    ]
    return images, looks


def _stay_in_files(
    parts: Sequence[Sequence[ImageFile]], reading: Reading
) -> tuple[Sequence[Images], Looks]:
    """Leave images in their files; read only as much of them as is needed to judge them."""
    assert reading.size is not None
    size = (reading.size, reading.size)
    paths = [file.path for part in parts for file in part]
    if reading.skip_unreadable:
        found = look_at_all(paths, reading)
        looks = [own if isinstance(own, GraceError) else own[0] for own in found]
    else:
        looks = [Look(size=size, key=key) for key in file_keys(paths)]
    readable = {path for path, own in zip(paths, looks, strict=True) if isinstance(own, Look)}
    return [
        FileImages([file.path for file in part if file.path in readable], reading) for part in parts
    ], looks


def file_keys(paths: Sequence[Path]) -> list[Hashable]:
    """Return a key for each file, equal for equal content; read as little as possible.

    Files are compared by length and their last 4 KiB, and then by the SHA-256 of the whole file.
    """
    ends = [_ending(path) for path in paths]
    counts = Counter(ends)
    return [
        (end, file_digest(path)) if counts[end] > 1 else end
        for path, end in zip(paths, ends, strict=True)
    ]


def _ending(path: Path) -> tuple[int, bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 4096, 0))
        return size, hashlib.sha256(file.read(4096)).digest()
