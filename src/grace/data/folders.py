"""Folders of images as data sets of experiments, ImageNet-100, and the images of one update."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

import torch

from grace.base.errors import GraceError
from grace.data.arrays import chosen_classes, first_of_each, held_out, imagenet_constants
from grace.data.decoding import MAX_PIXELS, upright_size
from grace.data.findings import Rules, judge_layout, refuse_first
from grace.data.folder_tree import FolderTree, ImageFile, scan
from grace.data.images import Dataset, LabelledImages, TensorImages
from grace.data.reading import Part, read_parts
from grace.data.scenario import class_order
from grace.settings.augmentation import crops_at_random
from grace.settings.experiment import DataSettings, Fit


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
    test_paths: Sequence[Path]
    notes: Sequence[str]
    """Findings that are not errors, such as images that were left out."""
    digest: str
    """SHA-256 (hexadecimal) of names, labels and pixels: equal for equal images."""


def load_update(
    root: Path,
    channels: Literal[1, 3],
    image_size: int | None,
    *,
    skip_unreadable: bool = False,
    skip_duplicates: bool = False,
    max_images_per_class: int | None = None,
    max_pixels: int = MAX_PIXELS,
    fit: Fit = "crop",
) -> UpdateFolder:
    """Load the images of one update.

    ``root`` has a layout of ``folder_tree.scan``; there may be test images of all classes, of some
    or of none. One class is enough. An image that is twice in a class is used once.

    Args:
        root: folder of the new images.
        channels: 1 for grey, 3 for colour.
        image_size: side in pixels of the square made of each image; ``None``: all images
            must have one size, which is kept.
        skip_unreadable: leave unreadable images out instead of refusing them.
        skip_duplicates: leave out images that are in two classes, and training images that are test
            images too, instead of refusing them.
        max_images_per_class: largest number of files of a class in each part, the first by name,
            at least 1; ``None``: all.
        max_pixels: an image with more pixels is unreadable.
        fit: how an image becomes a square.

    Raises:
        GraceError: for the first thing that is wrong with the folder, a class name or an image.
    """
    most = max_images_per_class
    if most is not None and most < 1:
        raise GraceError(f"max_images_per_class {most} leaves none", "use 1 or more")
    rules = Rules(
        skip_unreadable=skip_unreadable,
        skip_duplicates=skip_duplicates,
        image_size=image_size,
        max_pixels=max_pixels,
        fit=fit,
    )
    tree = scan(root)
    layout = judge_layout(tree, rules)
    refuse_first(layout, root)
    kinds = (False,) if tree.test is None else (False, True)
    parts = [_first(tree.files(is_test), most) for is_test in kinds]
    (train, *tests), found = read_parts(root, parts, channels, rules)
    test = tests[0] if tests and tests[0].files else None
    used = [train] if test is None else [train, test]
    return UpdateFolder(
        images=_in_memory(train),
        labels=train.class_names,
        paths=train.paths,
        test_images=_in_memory(test) if test is not None else None,
        test_labels=test.class_names if test is not None else (),
        test_paths=test.paths if test is not None else (),
        notes=[finding.text for finding in (*layout, *found)],
        digest=_digest(used),
    )


def _digest(parts: Sequence[Part]) -> str:
    digest = hashlib.sha256(json.dumps([part.class_names for part in parts]).encode())
    for part in parts:
        digest.update(part.images.digest())
    return digest.hexdigest()


def _first(files: Iterable[ImageFile], most: int | None) -> list[ImageFile]:
    """Return the first files of every class."""
    files = sorted(files)
    return [files[place] for place in first_of_each([file.class_name for file in files], most)]


def _in_memory(part: Part) -> TensorImages:
    assert isinstance(part.images, TensorImages)
    return part.images
