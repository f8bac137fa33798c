"""Folders of images as data sets of experiments, ImageNet-100, and the images of one update.

Shapes: N images, C channels, H×W pixels.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

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


def load_update(root: Path, reading: Reading) -> Dataset:
    """Load the images of one update, sorted by class name, then by file.

    ``root`` has a layout of ``folder_tree.scan``; there may be test images of all classes, of some
    or of none. One class is enough. An image that is twice in a class is used once.

    Raises:
        GraceError: for the first thing that is wrong with the folder, a class name or an image.
    """
    tree, notes = sound_tree(root, reading)
    return _read(tree, tree.files, "update", tree.class_names, reading, notes)


def load_folder(settings: DataSettings) -> Dataset:
    """Load the user's own folder of images; see ``folder_tree.scan`` for its layouts.

    Raises:
        GraceError: for the first thing that is wrong with the folder or a file.
    """
    tree, reading, notes = _scanned(settings, "experiment")
    return _chosen(tree, settings, tree.root.resolve().name, tree.class_names, reading, notes)


def load_imagenet100(settings: DataSettings) -> Dataset:
    """Load 100 classes of an ImageNet folder, ``root/train/<synset>`` and ``root/val/<synset>``.

    Raises:
        GraceError: for the first thing that is wrong with the folder or a file.
    """
    tree, reading, notes = _scanned(settings, "benchmark")
    if tree.test is None:
        raise GraceError(
            f"'{tree.root}' needs both train/<synset>/ and val/<synset>/",
            "sort the validation images into one folder per synset",
        )
    names = imagenet100_classes(tree.class_names, settings.class_list)
    if len(tree.class_names) == 100:
        notes.append("the folder has exactly 100 classes, which were taken as they are")
    return _chosen(tree, settings, "imagenet100", names, reading, notes)


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


def _scanned(
    settings: DataSettings, use: Literal["experiment", "benchmark"]
) -> tuple[FolderTree, Reading, list[str]]:
    """Return the folder of an experiment, how its images are read, and notes on its layout."""
    reading = replace(Reading.of(settings), use=use)
    tree, notes = sound_tree(given_root(settings), reading)
    return tree, reading, notes


def _chosen(
    tree: FolderTree,
    settings: DataSettings,
    name: str,
    class_names: Sequence[str],
    reading: Reading,
    notes: Sequence[str],
) -> Dataset:
    """Load the images that the settings choose: by classes, share held out and limits per class."""
    names = [class_names[label] for label in chosen_classes(class_names, settings)]
    wanted = set(names)
    files = [file for file in tree.files if file.class_name in wanted]
    if tree.test is None:
        labels = [file.class_name for file in files]
        _, tested = held_out(labels, settings.test_fraction, settings.split_seed)
        for place in tested:
            files[place] = replace(files[place], is_test=True)
    limits = (settings.max_train_per_class, settings.max_test_per_class)
    parts = [[file for file in files if file.is_test == is_test] for is_test in (False, True)]
    files = [
        part[place]
        for part, limit in zip(parts, limits, strict=True)
        for place in first_of_each([file.class_name for file in part], limit)
    ]
    streams = _streams(settings, len(files) * reading.channels)
    side = settings.image_size
    if streams and side is not None:
        # 256 to 224 where crops are drawn from the whole image, as ImageNet is tested.
        is_wide = crops_at_random(settings.augmentation)
        reading = replace(reading, shorter=side * 256 // 224 if is_wide else side)
    return _read(tree, files, name, names, reading, notes, streams=streams)


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


def _read(
    tree: FolderTree,
    files: Sequence[ImageFile],
    name: str,
    class_names: Sequence[str],
    reading: Reading,
    notes: Sequence[str],
    *,
    streams: bool = False,
) -> Dataset:
    """Read image files, training images first, and judge them.

    Images that are streamed stay in their files. Unreadable ones are then searched only if they are
    to be left out; otherwise duplicates are equal files.

    Raises:
        GraceError: the first error found.
    """
    read, looks = (_stay_in_files if streams else _decoded)(files, reading)
    findings, left_out = judge_images(tree.root, files, looks, reading)
    refuse_first(findings, tree.root)
    label = {name: place for place, name in enumerate(class_names)}
    used: list[LabelledImages] = []
    for is_test, images in zip((False, True), read, strict=True):
        own = [place for place in _readable(looks) if files[place].is_test == is_test]
        labels = torch.tensor([label[files[place].class_name] for place in own]).long()
        rows = [row for row, place in enumerate(own) if place not in left_out]
        whole = LabelledImages(images, labels)
        used.append(whole if len(rows) == len(own) else whole.subset(torch.tensor(rows).long()))
    mean, std = imagenet_constants(reading.channels)
    return Dataset(
        name=name,
        train=used[0],
        test=used[1],
        class_names=class_names,
        mean=mean,
        std=std,
        notes=[*notes, *(finding.text for finding in findings)],
    )


def _readable(looks: Looks) -> list[int]:
    return [place for place, look in enumerate(looks) if isinstance(look, Look)]


def _decoded(files: Sequence[ImageFile], reading: Reading) -> tuple[Sequence[Images], Looks]:
    """Decode training and test images into memory.

    Pixels of another size than the first one's are left out: the size will be refused.

    Raises:
        GraceError: if the machine has no memory for them.
    """
    looks: list[Look | GraceError] = []
    held = (bytearray(), bytearray())
    shape: tuple[int, ...] = (reading.channels, 1, 1)
    memory, taken = memory_bytes(), 0
    found = look_at_all([file.path for file in files], reading)
    for file, one in zip(files, found, strict=True):
        if isinstance(one, GraceError):
            looks.append(one)
            continue
        look, pixels = one
        looks.append(look)
        shape = shape if taken else pixels.shape
        if pixels.shape == shape:
            held[file.is_test].extend(pixels.data)
            taken += pixels.size
            if memory is not None and taken > memory // 2:
                raise GraceError(
                    f"images of {shape[2]}×{shape[1]} pixels, as '{printable(str(file.path))}' "
                    f"has, take {in_bytes(taken)} of memory and more, too much for this machine",
                    "learn smaller or fewer images, or set data.image_size",
                )
    empty = torch.empty((0, *shape), dtype=torch.uint8)
    return [
        TensorImages(torch.frombuffer(own, dtype=torch.uint8).view(-1, *shape) if own else empty)
        for own in held
    ], looks


def _stay_in_files(files: Sequence[ImageFile], reading: Reading) -> tuple[Sequence[Images], Looks]:
    """Leave images in their files; read only as much of them as is needed to judge them."""
    assert reading.size is not None
    size, paths = (reading.size, reading.size), [file.path for file in files]
    looks: Looks
    if reading.skip_unreadable:
        found = look_at_all(paths, reading)
        looks = [own if isinstance(own, GraceError) else own[0] for own in found]
    else:
        looks = [Look(size=size, key=key) for key in file_keys(paths)]
    kept = [files[place] for place in _readable(looks)]
    return [
        FileImages([file.path for file in kept if file.is_test == is_test], reading)
        for is_test in (False, True)
    ], looks


def file_keys(paths: Sequence[Path]) -> list[Hashable]:
    """Return a key for each file, equal for equal content; read as little as possible.

    Files are compared by length and their last 4 KiB, and then by the SHA-256 of the whole file.
    """
    ends: list[tuple[int, bytes]] = []
    for path in paths:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 4096, 0))
            ends.append((size, hashlib.sha256(file.read(4096)).digest()))
    counts = Counter(ends)
    return [
        (end, file_digest(path)) if counts[end] > 1 else end
        for path, end in zip(paths, ends, strict=True)
    ]
