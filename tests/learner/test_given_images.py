"""Images and labels of Python programs: every form gives the same pixels, mistakes give advice."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import grace
from grace.data.decoders import read_pixels
from grace.learner.given_images import as_images, as_labels
from support.picture_folders import folder, picture

SHAPE = (3, 16, 16)


def pixels(images: Any, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    found = as_images(images, shape)
    return found.gather(torch.arange(len(found)))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return sorted(folder(tmp_path, "ant", count=3, side=20).rglob("*.png"))


def test_every_form_gives_the_same_pixels(files: list[Path]) -> None:
    # As ``grace learn`` reads files of another size.
    truth = np.stack([read_pixels(path, 3, 16) for path in files])
    expected = torch.from_numpy(truth).permute(0, 3, 1, 2)
    opened = [Image.open(path) for path in files]
    forms: list[Any] = [
        *(files, list(map(str, files)), np.array(list(map(str, files))), tuple(files), opened),
        *(truth, torch.from_numpy(truth), expected, expected.numpy(), list(truth), list(expected)),
        *([files[0], opened[1], truth[2]], iter(files), truth[:, ::-1][:, ::-1]),
    ]
    for form in forms:
        assert torch.equal(pixels(form), expected)
    for one in (files[0], str(files[0]), opened[0], truth[0], expected[0], [truth[0]]):
        assert torch.equal(pixels(one), expected[:1])


def test_grey_pixels_need_no_channel() -> None:
    grey = torch.arange(2 * 4 * 6, dtype=torch.uint8).reshape(2, 4, 6)
    for form in (grey, grey.numpy(), grey[:, None], grey[..., None]):
        assert torch.equal(pixels(form, (1, 4, 6)), grey[:, None])
    assert torch.equal(pixels(grey[0], (1, 4, 6)), grey[:1, None])


def test_pil_images_are_turned_upright_and_laid_on_white() -> None:
    image = picture("ant", 0)
    turned = image.transpose(Image.Transpose.ROTATE_90)
    turned.getexif()[0x0112] = 6  # The camera lay on its side: turn it clockwise.
    assert torch.equal(pixels(turned), pixels(image))
    clear = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    assert pixels(clear).unique().tolist() == [255]


@pytest.mark.parametrize(
    ("images", "advice"),
    [
        (np.zeros((2, 3, 16, 16)), r"not float64: .* \(images \* 255\)\.round\(\)\.astype"),
        (torch.zeros(2, 3, 16, 16), r"not torch.float32: .* give .*\.byte\(\)"),
        (None, "not NoneType: give one image or a list of them"),
        (7, "not int: give one"),
        (b"photo.png", "not bytes: give one"),
        ([None], "an image must be a path, a PIL image or uint8 pixels, not NoneType"),
    ],
)
def test_what_is_no_image_is_a_type_error_with_advice(images: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        pixels(images)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"shape \(3, 8, 8\), this learner takes"),
        (torch.zeros(9, dtype=torch.uint8), r"shape \(9,\), this learner takes \(3, 16, 16\)"),
        ([], "no images were given"),
        (["nowhere.png"], "'nowhere.png'.*does not exist"),
        ([torch.zeros(2, 3, 16, 16, dtype=torch.uint8)], "shape"),
    ],
)
def test_what_does_not_fit_is_refused(images: Any, says: str) -> None:
    with pytest.raises(grace.GraceError, match=says):
        pixels(images)


def test_labels_of_every_form() -> None:
    numbers, texts = np.array([7, 8]), np.array(["7", "8"])
    for labels in (["7", "8"], (7, 8), numbers, texts, torch.tensor([7, 8])):
        assert as_labels(labels, 2) == ["7", "8"]


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        ("cat", r"one name for each image: give \['cat'\]"),
        (None, "labels must be a list of names, not NoneType"),
        (["cat", None], "label None must be a text, not NoneType"),
        ([0.5, 1.5], "label 0.5 must be a text, not float"),
        ([b"cat", "dog"], "must be a text, not bytes"),
    ],
)
def test_labels_that_are_no_names(labels: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        as_labels(labels, 2)
