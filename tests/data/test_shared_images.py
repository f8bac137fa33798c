"""The real 32-pixel set, where it lies beside the checkout."""

import tarfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from grace.data.sources import load_dataset
from grace.settings.experiment import DataSettings

ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "tiny-imagenet-100-32px.tar.xz"

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"no {ARCHIVE.name} beside the checkout"),
]


def unpack(root: Path, *classes: str) -> Counter[tuple[str, str]]:
    """Unpack some classes; count the images of every class by (split, class)."""
    counts: Counter[tuple[str, str]] = Counter()
    with tarfile.open(ARCHIVE) as tar:
        for member in tar:
            if not member.isfile():
                continue
            split, name, file_name = Path(member.name).parts[-3:]
            counts[split, name] += 1
            if name in classes:
                file = tar.extractfile(member)
                assert file is not None
                (root / split / name).mkdir(parents=True, exist_ok=True)
                (root / split / name / file_name).write_bytes(file.read())
    return counts


# One test, because unpacking takes seconds.
def test_real_images_are_counted_shaped_and_checked_for_duplicates(tmp_path: Path) -> None:
    counts = unpack(tmp_path, "n07747607_orange", "n07753592_banana")
    assert len(counts) == 200
    assert {split: count for (split, _), count in counts.items()} == {"train": 500, "test": 50}

    # One banana is also a test image of oranges; the other eleven pairs of equal images in the
    # whole set lie within its training images.
    with pytest.raises(ValueError, match=r"test images too \(1\): '.*banana/.*' and '.*orange/"):
        load_dataset(DataSettings(source="folder", root=str(tmp_path)))
    settings = DataSettings(source="folder", root=str(tmp_path), skip_duplicates=True)
    dataset = load_dataset(settings)
    assert dataset.train.images.shape == (3, 32, 32)
    assert list(dataset.class_names) == ["n07747607_orange", "n07753592_banana"]
    assert torch.bincount(dataset.test.labels).tolist() == [50, 50]
    assert torch.bincount(dataset.train.labels).tolist() == [500, 499]
    assert [note.partition(":")[0] for note in dataset.notes] == [
        "images in two classes (2)",
        "training images that are test images too, which are left out (1)",
    ]
