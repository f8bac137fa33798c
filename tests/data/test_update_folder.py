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
from grace.data.folders import UpdateFolder, load_update
from support.odd_images import animated, encoded, fill, noise, oriented, put, row


def load(root: Path, **options: object) -> UpdateFolder:
    return load_update(root, Reading(**options))  # type: ignore[arg-type]


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
    assert found.labels == ["ant", "ant"]
    assert torch.equal(found.images.pixels, torch.stack([planes(noise(n)) for n in (4000, 4001)]))
    assert found.test_images is None
    assert (list(found.test_labels), list(found.notes)) == ([], [])


@pytest.mark.parametrize("name", ["test", "val", "validation"])
def test_images_stand_by_class_and_then_by_file(images: Path, name: str) -> None:
    (images / "test").rename(images / name)
    found = load(images)
    assert found.labels == ["ant"] * 3 + ["bee"] * 3
    assert [path.name for path in found.paths] == ["000.png", "001.png", "002.png"] * 2
    assert torch.equal(found.images.pixels[3], planes(noise(1000)))
    assert torch.equal(found.test_images.pixels[1], planes(noise(10001)))
    assert list(found.test_labels) == ["ant", "ant"]


def test_grey_squares(images: Path) -> None:
    put(images / "train" / "ant" / "000.png", row((200, 100, 50), (200, 100, 50)))
    found = load(images, channels=1, size=4)
    assert found.images.shape == (1, 4, 4)
    # .299 · 200 + .587 · 100 + .114 · 50 = 124.2
    assert found.images.pixels[0].unique().tolist() == [124]


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
    names = [path.relative_to(root).as_posix() for path in found.paths]
    assert names == ["ant/a.png", "ant/b/z.png", "ant/c.png", "bee/deep/er/000.png"]
    assert torch.equal(found.images.pixels[0], planes(noise(4)))
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
    pixels = load(tmp_path).images.pixels
    assert pixels[0].permute(1, 2, 0).tolist() == [[list(p) for p in line] for line in expected]


def test_a_class_whose_images_are_all_test_images_too(images: Path) -> None:
    for path in (images / "train" / "bee").iterdir():
        shutil.copy(path, images / "test" / "ant" / f"x{path.name}")
    lost = r"classes without usable training images \(1\): 'bee'"
    refused(lost, lambda: load(images, skip_duplicates=True))
