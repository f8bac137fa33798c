"""Folders of images: anyone's own, and ImageNet-100."""

import hashlib
import math
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from grace.configs.augmentation import crops_at_random
from grace.configs.experiment import DataSettings
from grace.data.arrays import for_channels
from grace.data.decoding import open_image, other_size, read_all, upright_size
from grace.data.files import FileImages
from grace.data.folder_tree import FolderTree, scan
from grace.data.images import Dataset, Images, LabelledImages, TensorImages
from grace.data.scenario import class_order
from grace.data.selection import (
    chosen_classes,
    duplicates,
    duplicates_note,
    first_of_each,
    held_out,
    pixel_keys,
)
from grace.text.refusals import GraceError

Labelled = Sequence[tuple[Path, int]]


def load_folder(settings: DataSettings) -> Dataset:
    """Load a person's own folder of images; see ``folder_tree.scan`` for its layouts.

    Raises:
        ValueError: for anything wrong with the folder or a file, and for a test image that is also
            a training image (unless ``skip_duplicates``).
    """
    tree = scan(_root(settings))
    name = tree.root.resolve().name
    return _load(tree, settings, name, tree.class_names, refuse_duplicates=True)


def load_imagenet100(settings: DataSettings) -> Dataset:
    """Load 100 classes of an ImageNet folder, ``root/train/<synset>`` and ``root/val/<synset>``.

    Reference:
        docs/protocols.md#imagenet-100.
    """
    tree = scan(_root(settings))
    if tree.test is None:
        raise GraceError(
            f"'{tree.root}' needs both train/<synset>/ and val/<synset>/",
            "sort the validation images into one folder per synset",
        )
    names = imagenet100_classes(tree.class_names, settings.class_list)
    dataset = _load(tree, settings, "imagenet100", names, refuse_duplicates=False)
    if len(tree.class_names) == 100:
        note = "the folder has exactly 100 classes, which were taken as they are"
        dataset = replace(dataset, notes=[*dataset.notes, note])
    return dataset


def imagenet100_classes(
    synsets: Sequence[str], class_list: Literal["icarl", "sorted"]
) -> list[str]:
    """Choose the 100 classes of ImageNet-100.

    ``icarl``: those whose sorted position is among the first 100 entries of
    ``RandomState(1993).permutation(1000)``; ``sorted``: the first 100. Both are given sorted: the
    order in which classes arrive is the scenario's. A folder of exactly 100 classes is taken whole.

    Args:
        synsets: names of all class folders, sorted; 1000 or 100.
        class_list: which of the two lists in circulation.

    Raises:
        ValueError: for any other number of folders.

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
            f"data.root is not set: the source '{settings.source}' needs the folder of its images"
        )
    return Path(settings.root).expanduser()


def _load(
    tree: FolderTree,
    settings: DataSettings,
    name: str,
    class_names: Sequence[str],
    refuse_duplicates: bool,
) -> Dataset:
    names = [class_names[label] for label in chosen_classes(class_names, settings)]
    train_files, test_files = _split(tree, settings, names)
    channels: Literal[1, 3] = settings.channels or 3
    streams = _streams(settings, channels, [*train_files, *test_files])
    train = _read(train_files, settings, channels, streams)
    test = _read(test_files, settings, channels, streams)
    notes = _notes(tree.num_ignored, [*train.problems, *test.problems])
    pairs = duplicates(*_keys(train, test))
    if pairs and refuse_duplicates and not settings.skip_duplicates:
        first, second = pairs[0]
        raise GraceError(
            f"test image '{test.paths[second]}' is also the training image '{train.paths[first]}' "
            f"({len(pairs)} such pairs)",
            "remove one of each, or set data.skip_duplicates=true",
        )
    if pairs:
        notes.append(duplicates_note(pairs, settings.skip_duplicates))
        train = train.without(pairs) if settings.skip_duplicates else train
    return Dataset(
        name=name,
        train=train.labelled(names, "training"),
        test=test.labelled(names, "test"),
        class_names=names,
        mean=for_channels((0.485, 0.456, 0.406), channels),
        std=for_channels((0.229, 0.224, 0.225), channels),
        notes=notes,
    )


def _split(
    tree: FolderTree, settings: DataSettings, names: Sequence[str]
) -> tuple[Labelled, Labelled]:
    """Choose files: classes (relabelled by their place in ``names``), test share, limits."""
    labels = {name: label for label, name in enumerate(names)}

    def chosen(files: Labelled) -> list[tuple[Path, int]]:
        known = ((path, labels.get(tree.class_names[label])) for path, label in files)
        return [(path, label) for path, label in known if label is not None]

    def limited(files: Labelled, limit: int | None) -> Labelled:
        return [files[i] for i in first_of_each([label for _, label in files], limit)]

    train = chosen(tree.train)
    if tree.test is not None:
        test = chosen(tree.test)
    else:
        places = held_out(
            [label for _, label in train], names, settings.test_fraction, settings.split_seed
        )
        train, test = ([train[i] for i in own] for own in places)
    return (
        limited(train, settings.max_train_per_class),
        limited(test, settings.max_test_per_class),
    )


def _streams(
    settings: DataSettings, channels: int, files: Labelled, limit: int = 4 * 1024**3
) -> bool:
    """Decide whether images stay in files: asked for, or more than ``limit`` bytes of pixels."""
    if settings.streaming != "auto":
        return settings.streaming
    side = settings.image_size
    num_pixels = side * side if side is not None else _area_of_first(files)
    return len(files) * channels * num_pixels > limit


def _area_of_first(files: Labelled) -> int:
    """Pixels of the first readable image; unreadable ones are complained about where read."""
    for path, _ in files:
        with suppress(ValueError):
            return math.prod(upright_size(path))
    return 0


@final
@dataclass(frozen=True, kw_only=True)
class _Split:
    """Images that were read, with labels (N,), files, and one line per unreadable file."""

    images: Images
    labels: Tensor
    paths: Sequence[Path]
    problems: Sequence[str] = ()

    def without(self, pairs: Sequence[tuple[int, int]]) -> "_Split":
        """Drop the training images among pairs (training position, test position)."""
        dropped = {first for first, _ in pairs}
        kept = [place for place in range(len(self.paths)) if place not in dropped]
        return _Split(
            images=self.images.subset(torch.tensor(kept, dtype=torch.int64)),
            labels=self.labels[kept],
            paths=[self.paths[place] for place in kept],
            problems=self.problems,
        )

    def labelled(self, names: Sequence[str], split: str) -> LabelledImages:
        """Return images and labels, or refuse a class that has none left."""
        counts = torch.bincount(self.labels, minlength=len(names))
        if not bool(counts.all()):
            lacking = names[int((counts == 0).nonzero()[0])]
            raise GraceError(f"class '{lacking}' has no usable {split} images left", "add some")
        return LabelledImages(self.images, self.labels)


def _read(
    files: Labelled, settings: DataSettings, channels: Literal[1, 3], streams: bool
) -> _Split:
    """Read files into memory, or check them and leave them where they are."""
    paths = [path for path, _ in files]
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    size = settings.image_size
    if not streams:
        decoded = read_all(paths, channels, size, settings.skip_unreadable)
        kept = list(decoded.kept)
        images: Images = TensorImages(decoded.pixels)
        problems = decoded.problems
    else:
        kept, problems = _readable(paths, settings.skip_unreadable)
        paths, labels = [paths[place] for place in kept], labels[kept]
        kept = list(range(len(paths)))
        # docs/protocols.md#augmentation: 256 to 224 where crops are drawn from the whole image.
        wide = size is not None and crops_at_random(settings.augmentation)
        shorter = size * 256 // 224 if size is not None and wide else size
        shape = (size, size) if size is not None else _common_size(paths)
        images = FileImages(paths, channels, shape, shorter)
    return _Split(
        images=images,
        labels=labels[kept],
        paths=[paths[place] for place in kept],
        problems=problems,
    )


def _readable(paths: Sequence[Path], skip_unreadable: bool) -> tuple[list[int], list[str]]:
    """Decode every file once to find those to leave out; only where that is asked for."""
    if not skip_unreadable:
        return list(range(len(paths))), []

    def problem(path: Path) -> str | None:
        try:
            open_image(path, 3)
        except GraceError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(problem, paths))
    if None not in found:
        raise GraceError(f"none of {len(paths)} images can be read; the first: {found[0]}")
    problems = [line for line in found if line is not None]
    return [place for place, line in enumerate(found) if line is None], problems


def _common_size(paths: Sequence[Path]) -> tuple[int, int]:
    """Return (H, W) of images that all have one size, read from their headers."""
    width, height = upright_size(paths[0])
    for path in paths:
        found = upright_size(path)
        if found != (width, height):
            raise other_size((path, *found), (paths[0], width, height))
    return height, width


def _keys(train: _Split, test: _Split) -> tuple[Sequence[Hashable], Sequence[Hashable]]:
    """Return what equal images have in common: pixels in memory, or else file contents.

    Files are read only where another split has one of the same length.
    """
    if isinstance(train.images, TensorImages) and isinstance(test.images, TensorImages):
        return pixel_keys(train.images.pixels), pixel_keys(test.images.pixels)
    lengths = [[path.stat().st_size for path in split.paths] for split in (train, test)]
    common = set(lengths[0]) & set(lengths[1])

    def keys(split: _Split, own: Sequence[int]) -> list[Hashable]:
        return [
            hashlib.sha256(path.read_bytes()).digest() if length in common else path
            for path, length in zip(split.paths, own, strict=True)
        ]

    return keys(train, lengths[0]), keys(test, lengths[1])


def _notes(num_ignored: int, problems: Sequence[str]) -> list[str]:
    notes = []
    if num_ignored:
        notes.append(f"{num_ignored} files that are no images were ignored")
    if problems:
        notes.append(f"{len(problems)} unreadable images were left out; the first: {problems[0]}")
    return notes
