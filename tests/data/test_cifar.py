"""CIFAR's loaders on small files of CIFAR's own format."""

import io
import pickle
import tarfile
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision.datasets import utils

from grace.base.errors import GraceError
from grace.data.images import TensorImages
from grace.data.sources import load_dataset
from grace.settings.experiment import DataSettings

FINE = [f"class{number:02}" for number in range(100)]
TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def batch(labels: list[int], seed: int) -> dict[str, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return {"labels": labels, "data": pixels}


def write(path: Path, content: dict[str, Any], *before: int) -> None:
    """Write records as the makers describe them: label bytes, then red, green and blue."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(content["labels"], content["data"], strict=True)
    path.write_bytes(b"".join(bytes([*before, label]) + row.tobytes() for label, row in rows))


def cifar100(root: Path) -> dict[str, Any]:
    """Write two training images and one test image of each class."""
    content = {"train": batch([*range(100), *range(100)], 0), "test": batch(list(range(100)), 1)}
    for name, part in content.items():
        write(root / "cifar-100-binary" / f"{name}.bin", part, 77)
    names = root / "cifar-100-binary" / "fine_label_names.txt"
    names.write_text("".join(f"{name}\n" for name in FINE))
    return content


def cifar10(root: Path) -> list[dict[str, Any]]:
    """Write five training files and a test file of ten images each."""
    folder = root / "cifar-10-batches-bin"
    parts = [batch(list(range(10)), seed) for seed in range(6)]
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name, part in zip(names, parts, strict=True):
        write(folder / f"{name}.bin", part)
    # Theirs ends with an empty line.
    (folder / "batches.meta.txt").write_text("".join(f"{name}\n" for name in [*TEN, ""]))
    return parts


def pixels(images: Any) -> torch.Tensor:
    assert isinstance(images, TensorImages)
    return images.pixels


def offline(*args: object, **kwargs: object) -> None:
    raise urllib.error.URLError("Name or service not known")


def test_cifar100_is_read_as_torchvision_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = cifar100(tmp_path)
    dataset = load_dataset(DataSettings(source="cifar100", root=str(tmp_path)))
    assert dataset.name == "cifar100"
    assert list(dataset.class_names) == FINE
    assert (dataset.mean, dataset.std) == ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    # The same images in the layout that torchvision reads.
    theirs = tmp_path / "cifar-100-python"
    theirs.mkdir()
    for name in ("train", "test"):
        part = {"data": content[name]["data"], "fine_labels": content[name]["labels"]}
        (theirs / name).write_bytes(pickle.dumps(part, protocol=2))
    (theirs / "meta").write_bytes(pickle.dumps({"fine_label_names": FINE}, protocol=2))
    monkeypatch.setattr(datasets.CIFAR100, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5: True)
    for split, is_train in ((dataset.train, True), (dataset.test, False)):
        reference = datasets.CIFAR100(tmp_path, train=is_train)
        assert split.labels.tolist() == reference.targets
        expected = torch.from_numpy(reference.data).permute(0, 3, 1, 2)
        assert torch.equal(pixels(split.images), expected)


def test_cifar10_is_five_files_behind_each_other(tmp_path: Path) -> None:
    parts = cifar10(tmp_path)
    dataset = load_dataset(DataSettings(source="cifar10", root=str(tmp_path)))
    assert dataset.train.labels.tolist() == list(range(10)) * 5
    expected = np.concatenate([part["data"] for part in parts[:5]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(pixels(dataset.train.images).numpy(), expected)
    assert len(dataset.test) == 10
    assert list(dataset.class_names) == TEN


def test_test_images_that_are_training_images_are_counted(tmp_path: Path) -> None:
    content = cifar100(tmp_path)
    content["test"]["data"][:3] = content["train"]["data"][100:103]
    write(tmp_path / "cifar-100-binary" / "test.bin", content["test"], 0)
    root = str(tmp_path)
    dataset = load_dataset(DataSettings(source="cifar100", root=root))
    assert list(dataset.notes) == ["3 test images are also training images"]
    assert len(dataset.train) == 200
    dataset = load_dataset(DataSettings(source="cifar100", root=root, skip_duplicates=True))
    assert len(dataset.train) == 197
    assert "were dropped" in dataset.notes[0]


def test_absent_and_offline_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils, "download_url", offline)
    root = tmp_path / "data"
    with pytest.raises(
        ValueError, match=r"put cifar-100-binary\.tar\.gz from there into"
    ) as caught:
        load_dataset(DataSettings(source="cifar100", root=str(root)))
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(root.iterdir()) == []


def test_the_archive_is_fetched_once_and_only_known_files_come_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    cifar100(made)
    fetched: list[str] = []

    def download(url: str, root: str, filename: str, md5: str) -> None:
        fetched.append(url)
        assert md5 == "03b5dce01913d631647c71ecec9e9cb8"
        with tarfile.open(Path(root) / filename, "w:gz") as tar:
            tar.add(made / "cifar-100-binary", "cifar-100-binary")
            evil = tarfile.TarInfo("../evil")
            tar.addfile(evil, io.BytesIO())

    monkeypatch.setattr(utils, "download_url", download)
    root = tmp_path / "data"
    for _ in range(2):
        dataset = load_dataset(DataSettings(source="cifar100", root=str(root)))
        assert len(dataset.train) == 200
    assert fetched == [datasets.CIFAR100.url.replace("python", "binary")]
    assert sorted(path.name for path in root.rglob("*")) == [
        "cifar-100-binary", "fine_label_names.txt", "test.bin", "train.bin",
    ]  # fmt: skip
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes, which are no records of 3074 bytes"),
        (bytes(3074 * 2 - 1), "has 6147 bytes"),
        (bytes([0, 100, *bytes(3072)]), r"labels outside 0\.\.99"),
    ],
)
def test_files_of_another_shape_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    cifar100(tmp_path)
    path = tmp_path / "cifar-100-binary" / "train.bin"
    path.write_bytes(content)
    with pytest.raises(GraceError, match=message) as caught:
        load_dataset(DataSettings(source="cifar100", root=str(tmp_path)))
    assert str(path) in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    with path.open("r+b") as file:
        file.truncate(50_001 * 3073)  # sparse: takes no room
    with pytest.raises(GraceError, match="153653073 bytes"):
        load_dataset(DataSettings(source="cifar10", root=str(tmp_path)))


def test_names_that_are_too_few_are_refused(tmp_path: Path) -> None:
    cifar100(tmp_path)
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").write_text("apple\n\n")
    with pytest.raises(GraceError, match=r"fine_label_names.txt' does not name 100 classes"):
        load_dataset(DataSettings(source="cifar100", root=str(tmp_path)))
