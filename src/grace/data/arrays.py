"""Data sets that come as arrays, and which classes and images of any data set are used."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import distribution

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grace.base.errors import GraceError
from grace.base.randomness import generator
from grace.base.words import did_you_mean
from grace.data.images import Dataset, LabelledImages, TensorImages, image_keys
from grace.settings.experiment import DataSettings


def chosen_classes(class_names: Sequence[str], settings: DataSettings) -> list[int]:
    """Return the labels of the classes to use, in the source's order.

    Args:
        class_names: all names of the source, by label.
        settings: ``classes`` keeps these names; ``max_classes`` then keeps the first N.

    Raises:
        GraceError: for an unknown name, or more classes than there are.
    """
    chosen = list(range(len(class_names)))
    if settings.classes is not None:
        for name in settings.classes:
            if name not in class_names:
                raise GraceError(
                    f"data.classes names the unknown class '{name}'"
                    f"{did_you_mean(name, class_names)}"
                )
        wanted = set(settings.classes)
        chosen = [label for label in chosen if class_names[label] in wanted]
    if settings.max_classes is not None:
        if settings.max_classes > len(chosen):
            raise GraceError(
                f"data.max_classes {settings.max_classes} exceeds the {len(chosen)} classes of "
                "the source",
                "lower it",
            )
        chosen = chosen[: settings.max_classes]
    if len(chosen) < 2:
        raise GraceError(f"only {len(chosen)} class to learn", "give images of at least two")
    return chosen


def first_of_each(labels: Sequence[Hashable], limit: int | None) -> list[int]:
    """Return the positions of the first ``limit`` images of each class, in order."""
    seen: dict[Hashable, int] = defaultdict(int)
    kept: list[int] = []
    for position, label in enumerate(labels):
        seen[label] += 1
        if limit is None or seen[label] <= limit:
            kept.append(position)
    return kept


def held_out(class_names: Sequence[str], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Split images into training and test images, stratified by class.

    A class with n images has ``round(n · fraction)`` test images, at least one and not all. Each
    class has its own random generator, so that adding a class changes no other class.

    Args:
        class_names: class of each image.
        fraction: share of test images, in (0, 1). Higher: fewer training images.
        seed: seed of the split.

    Returns:
        Positions of training and of test images, ascending.

    Raises:
        GraceError: if a class has only one image.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(class_names):
        places[name].append(position)
    tested: set[int] = set()
    for name, own in places.items():
        if len(own) < 2:
            raise GraceError(
                f"class '{name}' has only one image, so that none can be held out for testing",
                "add images or give a test folder",
            )
        count = min(max(round(len(own) * fraction), 1), len(own) - 1)
        order = torch.randperm(len(own), generator=generator(seed, "split", name))
        tested.update(own[int(i)] for i in order[:count])
    return [place for place in range(len(class_names)) if place not in tested], sorted(tested)


def load_digits(settings: DataSettings) -> Dataset:
    """Load scikit-learn's digits: 1,797 grey images of 8×8 pixels; nothing is downloaded.

    Levels 0..16 become 0..255; a stratified share is held out; the normalisation constants are
    those of the training pixels.
    """
    # Read from scikit-learn's own file: importing the package would take two seconds.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))
    labels = rows[:, -1].long()
    pixels = (rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).round().to(torch.uint8)
    classes = [str(label) for label in labels.tolist()]
    train, test = held_out(classes, settings.test_fraction, settings.split_seed)
    levels = pixels[train].double() / 255
    digits = Dataset(
        name="digits",
        train=LabelledImages(TensorImages(pixels[train]), labels[train]),
        test=LabelledImages(TensorImages(pixels[test]), labels[test]),
        class_names=list("0123456789"),
        mean=(float(levels.mean()),),
        std=(float(levels.std(correction=0)),),
    )
    return finish(digits, settings)


def finish(source: Dataset, settings: DataSettings) -> Dataset:
    """Choose classes, images, size and channels of a whole data set in memory by the settings.

    Test images that are also training images are counted in the notes, and left out of the
    training images with ``skip_duplicates``.
    """
    chosen = chosen_classes(source.class_names, settings)
    channels = settings.channels or source.train.images.shape[0]
    train = _prepared(source.train, chosen, settings.max_train_per_class, channels, settings)
    test = _prepared(source.test, chosen, settings.max_test_per_class, channels, settings)
    notes = []
    keys, test_keys = image_keys(train.images), image_keys(test.images)
    known, tested = set(keys), set(test_keys)
    num_tested = sum(key in known for key in test_keys)
    if num_tested:
        notes.append(f"{num_tested} test images are also training images")
    if num_tested and settings.skip_duplicates:
        notes[0] += "; the training copies were dropped"
        kept = [place for place, key in enumerate(keys) if key not in tested]
        train = train.subset(torch.tensor(kept, dtype=torch.int64))
    return replace(
        source,
        train=train,
        test=test,
        class_names=[source.class_names[label] for label in chosen],
        mean=for_channels(source.mean, channels),
        std=for_channels(source.std, channels),
        notes=notes,
    )


def _prepared(
    data: LabelledImages,
    chosen: Sequence[int],
    limit: int | None,
    channels: int,
    settings: DataSettings,
) -> LabelledImages:
    """Choose classes (relabelled by their place among them) and images, then size and channels."""
    relabel = torch.full((int(data.labels.max()) + 1,), -1)
    relabel[chosen] = torch.arange(len(chosen))
    labels = relabel[data.labels]
    places = (labels >= 0).nonzero().flatten()
    places = places[first_of_each(labels[places].tolist(), limit)]
    pixels = to_channels(data.images.gather(places), channels)
    if settings.image_size is not None:
        pixels = resized(pixels, settings.image_size)
    return LabelledImages(TensorImages(pixels), labels[places])


def imagenet_constants(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return ImageNet's mean and standard deviation per channel, of pixels in [0, 1].

    They normalise images that bring no constants of their own.
    """
    return (
        for_channels((0.485, 0.456, 0.406), channels),
        for_channels((0.229, 0.224, 0.225), channels),
    )


def for_channels(constants: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Convert normalisation constants between one and three channels.

    To grey, they are weighted as luma is (exact for the mean, close for the deviation); to colour,
    they are repeated.
    """
    if len(constants) == channels:
        return constants
    if channels == 3:
        return constants * 3
    return (0.299 * constants[0] + 0.587 * constants[1] + 0.114 * constants[2],)


def to_channels(pixels: Tensor, channels: int) -> Tensor:
    """Convert (N, C, H, W) uint8 between grey and colour; luma is rounded as PIL does."""
    if pixels.shape[1] == channels:
        return pixels
    if channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32)[:, None, None]
    return ((pixels.int() * weights).sum(1, keepdim=True).add_(1 << 15) >> 16).to(torch.uint8)


def resized(pixels: Tensor, size: int) -> Tensor:
    """Resize square images (N, C, H, H) uint8 to side ``size``, bilinear with antialiasing."""
    if pixels.shape[2:] == (size, size):
        return pixels
    resize = partial(F.interpolate, size=(size, size), mode="bilinear", antialias=True)
    parts = pixels.split(4096)  # As floats, all at once would take much memory.
    return torch.cat([resize(part.float()).round_().clamp_(0, 255).byte() for part in parts])
