"""The images of an update: layouts, names, odd files and duplicates."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grace.base.errors import GraceError
from grace.data.decoding import Reading
from grace.data.folders import load_update
from grace.data.images import Dataset, LabelledImages
from support.odd_images import animated, encoded, fill, noise, oriented, put, row


def load(root: Path, **options: object) -> Dataset:
    return load_update(root, Reading(**options))  # type: ignore[arg-type]


def pixels(data: LabelledImages) -> torch.Tensor:
    return data.images.gather(torch.arange(len(data)))


def refused(message: str, act: Callable[[], object]) -> str:
    with pytest.raises(GraceError, match=message) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def planes(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of three images, and two test images of one of them."""
    for number, name in enumerate(["bee", "ant"]):
        fill(tmp_path / "train" / name, 3, seed=1 + number)
    fill(tmp_path / "test" / "ant", 2, seed=10)
    return tmp_path


def test_one_class_is_enough(tmp_path: Path) -> None:
    fill(tmp_path / "ant", 2, seed=4)
    found = load(tmp_path)
    assert found.train.labels.tolist() == [0, 0]
    assert torch.equal(pixels(found.train), torch.stack([planes(noise(n)) for n in (4000, 4001)]))
    assert (len(found.test), found.class_names, found.notes) == (0, ["ant"], [])


@pytest.mark.parametrize("name", ["test", "val", "validation"])
def test_images_stand_by_class_and_then_by_file(images: Path, name: str) -> None:
    (images / "test").rename(images / name)
    found = load(images)
    assert found.train.labels.tolist() == [0] * 3 + [1] * 3
    seeds = (2000, 2001, 2002, 1000, 1001, 1002)
    assert torch.equal(pixels(found.train), torch.stack([planes(noise(n)) for n in seeds]))
    assert torch.equal(pixels(found.test)[1], planes(noise(10001)))
    assert found.test.labels.tolist() == [0, 0]


def test_grey_squares(images: Path) -> None:
    put(images / "train" / "ant" / "000.png", row((200, 100, 50), (200, 100, 50)))
    found = load(images, channels=1, size=4)
    assert found.train.images.shape == (1, 4, 4)
    # .299 · 200 + .587 · 100 + .114 · 50 = 124.2
    assert pixels(found.train)[0].unique().tolist() == [124]


def test_links_subfolders_and_circles(tmp_path: Path) -> None:
    lone = put(tmp_path / "lone.png", noise(4))
    fill(tmp_path / "kept" / "deep" / "er", 1, seed=1)
    root = tmp_path / "images"
    put(root / "ant" / "b" / "z.png", noise(5))
    put(root / "ant" / "c.png", noise(6))
    (root / "ant" / "a.png").symlink_to(lone)
    (root / "ant" / "round").symlink_to(root)
    (root / "bee").symlink_to(tmp_path / "kept")
    found = load(root)
    assert found.train.labels.tolist() == [0, 0, 0, 1]
    seeds = (4, 5, 6, 1000)
    assert torch.equal(pixels(found.train), torch.stack([planes(noise(n)) for n in seeds]))
    lone.unlink()
    gone = r"unreadable images \(1\): 'ant/a.png' \(it is a link to nothing\)"
    refused(gone, lambda: load(root))


# Of two pixels a row, by hand.
RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)
ODD: dict[str, tuple[bytes, list[list[tuple[int, ...]]]]] = {
    # 32896 = 128 · 257
    "sixteen bits.png": (
        encoded(Image.fromarray(np.array([[257, 32896]], dtype=np.uint16))),
        [[(1, 1, 1), (128, 128, 128)]],
    ),
    "palette.png": (encoded(row(RED, BLUE).quantize(2)), [[RED, BLUE]]),
    # 100 · .2 + 255 · .8 = 224
    "alpha.png": (
        encoded(row((10, 20, 30, 0), (100, 100, 100, 51), mode="RGBA")),
        [[WHITE, (224, 224, 224)]],
    ),
    "quarter turn clockwise.png": (oriented(row(RED, BLUE), 6), [[RED], [BLUE]]),
    "upside down.PNG": (oriented(row(RED, BLUE), 3), [[BLUE, RED]]),
    "animated.png": (animated(row(RED, BLUE), row(BLUE, RED), "PNG"), [[RED, BLUE]]),
    "animated.webp": (animated(row(RED, BLUE), row(BLUE, RED), "WEBP"), [[RED, BLUE]]),
    "bits.bmp": (encoded(row(RED, BLUE).convert("1"), "BMP"), [[(0, 0, 0), (0, 0, 0)]]),
    "named wrongly.jpg": (encoded(row(RED, BLUE)), [[RED, BLUE]]),
    "café 画像 \U0001f41d.png": (encoded(row(RED, BLUE)), [[RED, BLUE]]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_images_give_the_pixels_a_person_sees(tmp_path: Path, name: str) -> None:
    content, expected = ODD[name]
    put(tmp_path / "ant" / name, content)
    found = pixels(load(tmp_path).train)
    assert found[0].permute(1, 2, 0).tolist() == [[list(p) for p in line] for line in expected]


def test_a_class_whose_images_are_all_test_images_too(images: Path) -> None:
    for path in (images / "train" / "bee").iterdir():
        shutil.copy(path, images / "test" / "ant" / f"x{path.name}")
    lost = r"classes without usable training images \(1\): 'bee'"
    refused(lost, lambda: load(images, skip_duplicates=True))
