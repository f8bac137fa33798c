"""How an image of another shape becomes a square: a crop, or margins; one rule everywhere."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from grace.data.decoders import read_pixels
from grace.data.decoding import GREY, Reading, squared
from grace.data.file_images import FileImages
from grace.data.folders import load_folder, load_update
from grace.settings.experiment import Fit
from grace.settings.load import load_experiment


def stripes(width: int, height: int) -> Image.Image:
    """Red at the left, blue at the right, and green between."""
    levels = np.zeros((height, width, 3), np.uint8)
    levels[:, : width // 4, 0] = 255
    levels[:, width // 4 : -(width // 4), 1] = 255
    levels[:, -(width // 4) :, 2] = 255
    return Image.fromarray(levels)


def noise(width: int, height: int) -> Image.Image:
    levels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(levels)


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (20, 20), (64, 16)])
def test_margins_are_pillows(size: tuple[int, int]) -> None:
    image = noise(*size)
    expected = ImageOps.pad(image, (8, 8), Image.Resampling.BILINEAR, color=(GREY,) * 3)
    found = torch.from_numpy(np.array(squared(image, Reading(size=8, fit="letterbox"))))
    assert torch.equal(found, torch.from_numpy(np.array(expected)))


@pytest.mark.parametrize("size", [(1, 900), (900, 1), (3, 3), (40, 41), (8, 8)])
def test_any_shape_becomes_the_square(size: tuple[int, int]) -> None:
    for fit in ("crop", "letterbox"):
        assert squared(Image.new("RGB", size), Reading(size=8, fit=fit)).size == (8, 8)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A folder of two classes of wide images, each of its own."""
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(3):
            share = 1 - number / 10  # No two images are equal, whatever is cut off.
            image = stripes(32 + 4 * number, 16 + number).point(lambda level, s=share: level * s)
            if name == "bee":
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            image.save(tmp_path / name / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("fit", ["crop", "letterbox"])
def test_one_rule_in_every_reader(wide: Path, fit: Fit) -> None:
    paths = sorted(wide.glob("*/*.png"))
    images = [read_pixels(path, Reading(3, 8, fit=fit)) for path in paths]
    wanted = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    learnt = load_update(wide, Reading(3, 8, fit=fit))
    assert torch.equal(learnt.images.pixels, wanted)
    streamed = FileImages(paths, Reading(3, 8, shorter=8, fit=fit))
    assert torch.equal(streamed.gather(torch.arange(6)), wanted)
    assert torch.equal(streamed.subset(torch.tensor([4])).gather(torch.tensor([0])), wanted[4:5])
    for streaming in ("true", "false"):
        settings = load_experiment(
            "folder",
            [
                f"data.root={wide}",
                "data.image_size=8",
                f"data.fit={fit}",
                f"data.streaming={streaming}",
                "data.test_fraction=0.34",
            ],
        )
        data = load_folder(settings.data)
        keys = {own.numpy().tobytes() for own in wanted}
        for part in (data.train, data.test):
            found = part.images.gather(torch.arange(len(part)))
            assert {own.numpy().tobytes() for own in found} <= keys


def test_streamed_crops_are_of_the_whole_square(wide: Path) -> None:
    """With boxes of the whole image, a letterboxed crop shows the margins."""
    paths = sorted(wide.glob("ant/*.png"))
    draws = torch.full((3, 22), 0.999)
    letterbox = FileImages(paths, Reading(3, 8, "letterbox", shorter=8))
    crops = letterbox.gather_crops(torch.arange(3), draws)
    assert crops.shape == (3, 3, 8, 8)
    assert (crops == GREY).all(dim=1).any()
    plain = FileImages(paths, Reading(3, 8, shorter=8)).gather_crops(torch.arange(3), draws)
    assert not (plain == GREY).all(dim=1).any()


def test_the_digest_of_streamed_images_knows_the_rule(wide: Path) -> None:
    paths = sorted(wide.glob("*/*.png"))
    crop = FileImages(paths, Reading(3, 8, shorter=8))
    assert crop.digest() != FileImages(paths, Reading(3, 8, shorter=8, fit="letterbox")).digest()
    assert crop.digest() == FileImages(paths, Reading(3, 8, shorter=8, fit="crop")).digest()
