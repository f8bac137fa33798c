"""Folders of images: layouts, splits, and everything people get wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, Resize

from grace.data.folders import imagenet100_classes
from grace.data.images import Dataset
from grace.data.sources import load_dataset
from grace.settings.experiment import DataSettings


def image(seed: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(levels)


def fill(folder: Path, count: int, seed: int = 0, suffix: str = "png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image(1000 * seed + number).save(folder / f"{number:03}.{suffix}")


def load(root: Path, **settings: object) -> Dataset:
    return load_dataset(DataSettings(source="folder", root=str(root), **settings))  # type: ignore[arg-type]


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """Three classes, four training and two test images each."""
    for number, name in enumerate(["ant", "bee", "cat"]):
        fill(tmp_path / "train" / name, 4, seed=1 + number)
        fill(tmp_path / "test" / name, 2, seed=10 + number)
    return tmp_path


def refused(message: str, act: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match=message) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_train_and_test_folders(splits: Path) -> None:
    dataset = load(splits)
    assert dataset.name == splits.name
    assert list(dataset.class_names) == ["ant", "bee", "cat"]
    assert dataset.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    first = torch.from_numpy(np.asarray(image(1000)).copy()).permute(2, 0, 1)
    assert torch.equal(dataset.train.images.gather(torch.tensor([0]))[0], first)
    assert (dataset.mean, dataset.notes) == ((0.485, 0.456, 0.406), [])
    assert load(splits, image_size=9, channels=1).train.images.shape == (1, 9, 9)
    refused("streamed need one size: set data.image_size", lambda: load(splits, streaming=True))


def test_one_folder_is_split_by_class(tmp_path: Path) -> None:
    fill(tmp_path / "ant", 10, seed=1)
    fill(tmp_path / "bee", 5, seed=2, suffix="JPG")
    fill(tmp_path / "deep" / "er", 5, seed=3, suffix="webp")
    dataset = load(tmp_path, test_fraction=0.2)
    assert list(dataset.class_names) == ["ant", "bee", "deep"]
    assert torch.bincount(dataset.test.labels).tolist() == [2, 1, 1]
    assert torch.bincount(dataset.train.labels).tolist() == [8, 4, 4]


def test_no_root_and_no_folder() -> None:
    refused(
        "needs the folder of its images: set data.root",
        lambda: load_dataset(DataSettings(source="folder")),
    )
    refused("'/no/such/place' does not exist", lambda: load(Path("/no/such/place")))


def test_splits_with_different_classes_are_refused(splits: Path) -> None:
    fill(splits / "train" / "dog", 2, seed=50)
    refused(r"training classes without test images \(1\): 'train/dog'", lambda: load(splits))
    fill(splits / "test" / "dog", 2, seed=51)
    fill(splits / "test" / "eel", 2, seed=52)
    refused(r"test classes without training images \(1\): 'test/eel'", lambda: load(splits))


@pytest.mark.parametrize("streaming", [False, True])
def test_unreadable_images(splits: Path, streaming: bool) -> None:
    broken = splits / "train" / "ant" / "001.png"
    broken.write_bytes(broken.read_bytes()[:60])
    if not streaming:
        refused(r"unreadable images \(1\): 'train/ant/001.png' \(", lambda: load(splits))
    dataset = load(splits, skip_unreadable=True, streaming=streaming, image_size=8)
    assert (len(dataset.train), len(dataset.notes)) == (11, 1)
    left_out = "unreadable images, which are left out (1): 'train/ant/001.png' ("
    assert dataset.notes[0].startswith(left_out)
    smaller = load(splits, skip_unreadable=True, streaming=streaming, image_size=9)
    assert smaller.train.images.shape == (3, 9, 9)


def test_a_class_that_loses_all_its_images_is_refused(splits: Path) -> None:
    for path in (splits / "test" / "bee").iterdir():
        path.write_bytes(b"")
    lost = r"classes without usable test images \(1\): 'bee'"
    refused(lost, lambda: load(splits, skip_unreadable=True))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_test_image_that_is_a_training_image(splits: Path, streaming: bool) -> None:
    image(1002).save(splits / "test" / "cat" / "copy.png")  # the third training image of ant
    load_it = lambda **more: load(splits, image_size=8, streaming=streaming, **more)  # noqa: E731
    pair = "'train/ant/002.png' and 'test/cat/copy.png'"
    refused(
        rf"\(1\): {pair}: remove the wrong one of each, or set data.skip_duplicates=true", load_it
    )
    dataset = load_it(skip_duplicates=True)
    assert torch.bincount(dataset.train.labels).tolist() == [3, 4, 4]
    assert len(dataset.test) == 7
    assert dataset.notes == [
        f"training images that are test images too, which are left out (1): {pair}"
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_experiment_only_counts_copies_among_training_images(
    splits: Path, streaming: bool
) -> None:
    image(1002).save(splits / "train" / "ant" / "copy.png")
    image(2001).save(splits / "train" / "cat" / "copy.png")
    dataset = load(splits, streaming=streaming, skip_duplicates=True, image_size=8)
    assert torch.bincount(dataset.train.labels).tolist() == [5, 4, 5]
    assert dataset.notes == [
        "images in two classes (1): 'train/bee/001.png' and 'train/cat/copy.png'"
    ]


def test_streamed_images_for_random_crops_are_tested_on_a_wider_resize(tmp_path: Path) -> None:
    for name, seed in (("ant", 1), ("bee", 2)):
        for split in ("train", "val"):
            (tmp_path / split / name).mkdir(parents=True)
            image(seed + len(split), (50, 40)).save(tmp_path / split / name / "0.png")
    dataset = load(tmp_path, image_size=28, augmentation="imagenet", streaming=True)
    # 256 to 224 as 32 to 28
    expected = np.asarray(CenterCrop(28)(Resize(32)(image(1 + 3, (50, 40)))))
    found = dataset.test.images.gather(torch.tensor([0]))[0]
    assert np.array_equal(found.permute(1, 2, 0).numpy(), expected)
    assert dataset.test.images.shape == (3, 28, 28)


def test_the_two_lists_of_imagenet100() -> None:
    synsets = [f"n{number:08}" for number in range(1000)]
    chosen = imagenet100_classes(synsets, "icarl")
    positions = [synsets.index(name) for name in chosen]
    assert positions[:9] == [7, 11, 14, 44, 54, 62, 75, 77, 85]  # docs/protocols.md#imagenet-100
    assert len(set(positions)) == 100
    assert imagenet100_classes(synsets, "sorted") == synsets[:100]
    # docs/protocols.md#imagenet-100: only nine classes in common
    assert len(set(chosen) & set(synsets[:100])) == 9
    assert imagenet100_classes(synsets[:100], "icarl") == synsets[:100]
    refused("not 101", lambda: imagenet100_classes(synsets[:101], "icarl"))


def test_imagenet100_is_read_from_an_imagenet_folder(tmp_path: Path) -> None:
    for number in range(100):
        for seed, split in enumerate(("train", "val")):
            fill(tmp_path / split / f"n{number:08}", 1, seed=1 + 2 * number + seed, suffix="bmp")
    settings = {"source": "imagenet100", "root": str(tmp_path)}
    dataset = load_dataset(DataSettings(**settings))  # type: ignore[arg-type]
    assert dataset.name == "imagenet100"
    assert (len(dataset.train), len(dataset.test)) == (100, 100)
    assert (dataset.mean[0], dataset.std[0]) == (0.485, 0.229)
    assert "exactly 100 classes" in dataset.notes[0]
    # In a named benchmark duplicates are only counted.
    (tmp_path / "val" / "n00000000" / "000.bmp").write_bytes(
        (tmp_path / "train" / "n00000005" / "000.bmp").read_bytes()
    )
    dataset = load_dataset(DataSettings(**settings))  # type: ignore[arg-type]
    assert dataset.notes[1] == (
        "training images that are test images too (1): "
        "'train/n00000005/000.bmp' and 'val/n00000000/000.bmp'"
    )
    assert len(dataset.train) == 100
