"""Names of sources, the digits, and the choices every source obeys."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from grace.data.arrays import chosen_classes, first_of_each, for_channels, held_out, to_channels
from grace.data.images import Dataset, LabelledImages, TensorImages
from grace.data.sources import load_dataset
from grace.settings.experiment import DataSettings


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset(DataSettings())


def all_pixels(data: LabelledImages) -> torch.Tensor:
    assert isinstance(data.images, TensorImages)
    return data.images.pixels


def test_a_misspelt_source_is_named_with_the_nearest_right_one() -> None:
    with pytest.raises(ValueError, match=r"'cifr100'; did you mean 'cifar100'\?"):
        load_dataset(DataSettings(source="cifr100"))
    with pytest.raises(ValueError, match="known: digits, cifar10"):
        load_dataset(DataSettings(source="zzz"))


def test_digits_are_scikit_learns(digits: Dataset) -> None:
    everything = torch.cat([all_pixels(digits.train), all_pixels(digits.test)])
    reference = load_digits()
    assert everything.shape == (1797, 1, 8, 8)
    # Level 16 is white.
    assert int(everything.max()) == 255
    assert int(everything.sum()) == int((reference.images * 255 / 16).round().sum())
    assert list(digits.class_names) == [str(number) for number in range(10)]
    counts = torch.bincount(torch.from_numpy(reference.target))
    tested = torch.bincount(digits.test.labels)
    assert tested.tolist() == [round(int(count) * 0.2) for count in counts]
    assert (tested + torch.bincount(digits.train.labels)).tolist() == counts.tolist()
    levels = all_pixels(digits.train).double() / 255
    assert (digits.mean, digits.std) == (
        (pytest.approx(float(levels.mean())),),
        (pytest.approx(float(levels.std(correction=0))),),
    )
    other = load_dataset(DataSettings(split_seed=1))
    assert not torch.equal(all_pixels(other.test), all_pixels(digits.test))


def test_colours_become_grey_as_by_pillow() -> None:
    levels = torch.randint(0, 256, (5, 3, 6, 7), generator=torch.Generator().manual_seed(0)).byte()
    grey = [Image.fromarray(own.permute(1, 2, 0).numpy()).convert("L") for own in levels]
    assert np.array_equal(to_channels(levels, 1)[:, 0].numpy(), np.stack([*map(np.array, grey)]))
    # Of the constants .2, .4 and .6: .299·.2 + .587·.4 + .114·.6.
    assert for_channels((0.2, 0.4, 0.6), 1) == (pytest.approx(0.363),)


def test_digits_can_be_chosen_limited_coloured_and_resized() -> None:
    dataset = load_dataset(
        DataSettings(
            classes=("7", "3"), max_train_per_class=5, max_test_per_class=2, channels=3,
            image_size=12,
        )
    )  # fmt: skip
    assert list(dataset.class_names) == ["3", "7"]
    assert torch.bincount(dataset.train.labels).tolist() == [5, 5]
    assert torch.bincount(dataset.test.labels).tolist() == [2, 2]
    assert dataset.train.images.shape == (3, 12, 12)
    assert dataset.mean == dataset.mean[:1] * 3


def test_unknown_and_repeated_classes_are_refused() -> None:
    names = ["cat", "dog", "horse"]
    with pytest.raises(ValueError, match=r"unknown class 'hors'; did you mean 'horse'\?"):
        chosen_classes(names, DataSettings(classes=("cat", "hors")))
    with pytest.raises(ValueError, match="max_classes 4 exceeds the 3 classes"):
        chosen_classes(names, DataSettings(max_classes=4))
    with pytest.raises(ValueError, match="only 1 class"):
        chosen_classes(names, DataSettings(classes=("cat",)))
    assert chosen_classes(names, DataSettings(max_classes=2)) == [0, 1]


def test_the_first_of_each_class_are_taken() -> None:
    assert first_of_each([0, 1, 0, 0, 1, 1], 2) == [0, 1, 2, 4]
    assert first_of_each([0, 1], None) == [0, 1]


def test_a_held_out_split_is_stratified_and_stable() -> None:
    names = list("a" * 10 + "b" * 3 + "c" * 2)
    train, test = held_out(names, 0.3, 0)
    # round(10·.3) = 3, round(3·.3) = 1, round(2·.3) = 1
    assert [names[place] for place in test] == list("aaabc")
    assert sorted(train + test) == list(range(15))
    # A new class moves no image of the others.
    _, with_more = held_out([*names, "d", "d"], 0.3, 0)
    assert with_more[:-1] == test
    with pytest.raises(ValueError, match="class 'b' has only one image"):
        held_out(["a", "a", "b"], 0.5, 0)
