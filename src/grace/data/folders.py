"""Folders of images as data sets of experiments: the user's own folder, and ImageNet-100."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from grace.base.errors import GraceError
from grace.data.arrays import imagenet_constants
from grace.data.decoding import upright_size
from grace.data.findings import Rules, judge_layout, refuse_first
from grace.data.folder_tree import FolderTree, ImageFile, scan
from grace.data.images import Dataset, LabelledImages
from grace.data.reading import Part, read_parts
from grace.data.scenario import class_order
from grace.data.selection import chosen_classes, first_of_each, held_out
from grace.settings.augmentation import crops_at_random
from grace.settings.experiment import DataSettings


def load_folder(settings: DataSettings) -> Dataset:
    """Load the user's own folder of images; see ``folder_tree.scan`` for its layouts.

    Raises:
        GraceError: for the first thing that is wrong with the folder or a file.
    """
    tree = scan(_root(settings))
    name = tree.root.resolve().name
    return _load(tree, settings, name, tree.class_names, _rules(settings, "experiment"))


def load_imagenet100(settings: DataSettings) -> Dataset:
    """Load 100 classes of an ImageNet folder, ``root/train/<synset>`` and ``root/val/<synset>``.

    Raises:
        GraceError: for the first thing that is wrong with the folder or a file.
    """
    tree = scan(_root(settings))
    if tree.test is None:
        raise GraceError(
            f"'{tree.root}' needs both train/<synset>/ and val/<synset>/",
            "sort the validation images into one folder per synset",
        )
    names = imagenet100_classes(tree.class_names, settings.class_list)
    dataset = _load(tree, settings, "imagenet100", names, _rules(settings, "benchmark"))
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


def _root(settings: DataSettings) -> Path:
    if settings.root is None:
        raise GraceError(
            f"the source '{settings.source}' needs the folder of its images", "set data.root"
        )
    return Path(settings.root).expanduser()


def _rules(settings: DataSettings, use: Literal["experiment", "benchmark"]) -> Rules:
    return Rules(
        use=use,
        skip_unreadable=settings.skip_unreadable,
        skip_duplicates=settings.skip_duplicates,
        image_size=settings.image_size,
        max_pixels=settings.max_pixels,
        fit=settings.fit,
    )


def _load(
    tree: FolderTree, settings: DataSettings, name: str, class_names: Sequence[str], rules: Rules
) -> Dataset:
    layout = judge_layout(tree, rules)
    refuse_first(layout, tree.root)
    names = [class_names[label] for label in chosen_classes(class_names, settings)]
    parts = _split(tree, settings, names)
    channels: Literal[1, 3] = settings.channels or 3
    side = settings.image_size
    # 256 to 224 where crops are drawn from the whole image, as ImageNet is tested.
    is_wide = side is not None and crops_at_random(settings.augmentation)
    (train, test), found = read_parts(
        tree.root,
        parts,
        channels,
        rules,
        streams=_streams(settings, channels, [file for part in parts for file in part]),
        shorter=side * 256 // 224 if side is not None and is_wide else side,
    )
    mean, std = imagenet_constants(channels)
    return Dataset(
        name=name,
        train=_labelled(train, names),
        test=_labelled(test, names),
        class_names=names,
        mean=mean,
        std=std,
        notes=[finding.text for finding in (*layout, *found)],
    )


def _labelled(part: Part, names: Sequence[str]) -> LabelledImages:
    labels = {name: label for label, name in enumerate(names)}
    return LabelledImages(part.images, torch.tensor([labels[name] for name in part.class_names]))


def _split(
    tree: FolderTree, settings: DataSettings, names: Sequence[str]
) -> list[Sequence[ImageFile]]:
    """Choose training and test files by classes, held-out share and limits per class."""
    wanted = set(names)
    train, test = (
        [file for file in tree.files(is_test) if file.class_name in wanted]
        for is_test in (False, True)
    )
    if tree.test is None:
        label = {name: place for place, name in enumerate(names)}
        labels = [label[file.class_name] for file in train]
        places = held_out(labels, names, settings.test_fraction, settings.split_seed)
        test = [replace(train[place], is_test=True) for place in places[1]]
        train = [train[place] for place in places[0]]
    limits = (settings.max_train_per_class, settings.max_test_per_class)
    return [
        [files[place] for place in first_of_each([file.class_name for file in files], limit)]
        for files, limit in zip((train, test), limits, strict=True)
    ]


def _streams(
    settings: DataSettings, channels: int, files: Sequence[ImageFile], limit: int = 4 * 1024**3
) -> bool:
    """Return True if images stay in files: by the setting, or above ``limit`` bytes of pixels."""
    if settings.streaming != "auto":
        return settings.streaming
    side = settings.image_size
    num_pixels = side * side if side is not None else _area_of_first(files, settings.max_pixels)
    return len(files) * channels * num_pixels > limit


def _area_of_first(files: Sequence[ImageFile], max_pixels: int) -> int:
    """Return the number of pixels of the first readable image; 0 if there is none."""
    for file in files:
        with suppress(GraceError):
            return math.prod(upright_size(file.path, max_pixels))
    return 0
