"""Image files become pixels: modes, orientations, squares; one rule in every reader."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

from grace.base.errors import GraceError
from grace.data.decoders import read_pixels
from grace.data.decoding import GREY, Reading, squared, upright_size
from grace.data.file_images import FileImages
from grace.data.folders import file_keys, load_folder, load_update
from grace.settings.experiment import Fit
from grace.settings.load import load_experiment


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(levels)


@pytest.mark.parametrize("size", [(40, 24), (24, 40), (24, 24), (9, 31), (65, 33)])
@pytest.mark.parametrize(("crop", "shorter"), [(16, 16), (14, 16), (24, 24), (28, 32)])
def test_a_square_is_cut_as_torchvision_cuts_it(
    tmp_path: Path, size: tuple[int, int], crop: int, shorter: int
) -> None:
    image = noise(*size)
    image.save(tmp_path / "a.png")
    resize = Resize(shorter, InterpolationMode.BILINEAR)
    expected = np.asarray(CenterCrop(crop)(resize(image)))
    assert np.array_equal(
        read_pixels(tmp_path / "a.png", Reading(3, crop, shorter=shorter)), expected
    )


def test_an_orientation_is_applied(tmp_path: Path) -> None:
    image = noise(6, 4)
    exif = Image.Exif()
    exif[0x0112] = 6  # seen after a quarter turn clockwise
    path = tmp_path / "a.png"
    image.save(path, exif=exif)
    turned = np.rot90(np.asarray(image), k=-1)
    assert np.array_equal(read_pixels(path, Reading(3)), turned)
    assert upright_size(path) == (4, 6)


def test_decompression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise(30, 30).save(tmp_path / "a.png")
    for limit in (400, 899):  # PIL itself refuses above twice its limit and warns below
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(
            GraceError, match=r"a\.png': (30×30 pixels are too many|it has too many)"
        ):
            read_pixels(tmp_path / "a.png", Reading(3))


def test_files_are_compared_by_length_ending_and_content(tmp_path: Path) -> None:
    zeros, ones = bytes(5000), b"\1" * 5000
    contents = [zeros, ones, zeros, b"\1" + zeros[1:], zeros + b"\0", b"", b""]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    keys = file_keys(paths)
    for first, key in zip(contents, keys, strict=True):
        assert [own == key for own in keys] == [content == first for content in contents]


def stripes(width: int, height: int) -> Image.Image:
    """Red at the left, blue at the right, and green between."""
    levels = np.zeros((height, width, 3), np.uint8)
    levels[:, : width // 4, 0] = 255
    levels[:, width // 4 : -(width // 4), 1] = 255
    levels[:, -(width // 4) :, 2] = 255
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
    assert torch.equal(learnt.train.images.gather(torch.arange(6)), wanted)
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
