"""Image files of every mode, orientation and state."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

from grace.base.errors import GraceError
from grace.data.decoders import read_pixels
from grace.data.decoding import Reading, upright_size
from grace.data.folders import file_keys


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
