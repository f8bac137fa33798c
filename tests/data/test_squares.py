"""How an image of another shape becomes a square: a crop, or margins; one rule everywhere."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2.functional import center_crop, resize

from grace.base.errors import GraceError
from grace.data.decoders import read_pixels
from grace.data.decoding import GREY, Reading, letterboxed, squared
from grace.data.file_images import FileImages
from grace.data.folders import load_folder, load_update
from grace.runs.provenance import fingerprints
from grace.settings.experiment import Fit
from grace.settings.load import load_experiment


def stripes(width: int, height: int) -> Image.Image:
    """Red at the left, blue at the right, and green between."""
    levels = np.zeros((height, width, 3), np.uint8)
    levels[:, : width // 4, 0] = 255
    levels[:, width // 4 : -(width // 4), 1] = 255
    levels[:, -(width // 4) :, 2] = 255
    return Image.fromarray(levels)


def test_margins_worked_by_hand() -> None:
    square = np.asarray(letterboxed(stripes(16, 8), 8)).astype(int)
    assert (square[:2] == GREY).all()
    assert (square[6:] == GREY).all()
    assert square[2:6, 0].tolist() == [[255, 0, 0]] * 4
    assert square[2:6, -1].tolist() == [[0, 0, 255]] * 4
    tall = np.asarray(letterboxed(stripes(8, 16), 8)).astype(int)
    assert (tall[:, :2] == GREY).all()
    assert (tall[:, 6:] == GREY).all()
    grey = letterboxed(Image.new("L", (5, 8), 7), 8)
    assert np.asarray(grey)[0].tolist() == [GREY, 7, 7, 7, 7, 7, GREY, GREY]


def noise(width: int, height: int) -> Image.Image:
    levels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(levels)


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (41, 24), (17, 17)])
def test_crops_are_torchvisions(size: tuple[int, int]) -> None:
    image = noise(*size)
    expected = center_crop(resize(image, [12]), [8, 8])
    found = torch.from_numpy(np.array(squared(image, Reading(size=8, shorter=12))))
    assert torch.equal(found, torch.from_numpy(np.array(expected)))


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


def test_a_square_is_the_same_in_both() -> None:
    image = stripes(20, 20)
    crop, letterbox = Reading(size=8), Reading(size=8, fit="letterbox")
    one, two = (np.asarray(squared(image, reading)) for reading in (crop, letterbox))
    assert (one == two).all()


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


def test_it_is_part_of_the_protocol_unless_it_is_the_default() -> None:
    def protocol(*overrides: str) -> str:
        settings = load_experiment("folder", ["data.image_size=8", *overrides])
        return fingerprints(settings, "data", {})["protocol"]

    assert protocol() == protocol("data.fit=crop") != protocol("data.fit=letterbox")


def test_another_word_is_refused() -> None:
    with pytest.raises(GraceError, match=r"data\.fit"):
        load_experiment("folder", ["data.fit=stretch"])
