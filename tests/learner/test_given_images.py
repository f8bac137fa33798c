"""Images and labels of Python programs: every form gives the same pixels, mistakes give advice."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import grace
from grace.data.decoders import read_pixels
from grace.data.decoding import Reading
from grace.learner.given_images import as_images, as_labels
from support.picture_folders import folder, picture


def pixels(images: Any, shape: tuple[int, int, int] = (3, 16, 16)) -> torch.Tensor:
    found = as_images(images, shape)
    return found.gather(torch.arange(len(found)))


def test_every_form_gives_the_same_pixels(tmp_path: Path) -> None:
    files = sorted(folder(tmp_path, "ant", count=3, side=20).rglob("*.png"))
    # As ``grace learn`` reads files of another size.
    truth = np.stack([read_pixels(path, Reading(3, 16)) for path in files])
    expected = torch.from_numpy(truth).permute(0, 3, 1, 2)
    opened = [Image.open(path) for path in files]
    forms: list[Any] = [
        *(files, list(map(str, files)), np.array(list(map(str, files))), tuple(files), opened),
        *(truth, torch.from_numpy(truth), expected, expected.numpy(), list(truth), list(expected)),
        *([files[0], opened[1], truth[2]], iter(files), truth[:, ::-1][:, ::-1]),
        *([expected[:2], files[2]], as_images(expected, (3, 16, 16))),
    ]
    for form in forms:
        assert torch.equal(pixels(form), expected)
    for one in (files[0], str(files[0]), opened[0], truth[0], expected[0], [truth[0]]):
        assert torch.equal(pixels(one), expected[:1])


def test_grey_pixels_need_no_channel_and_pil_images_are_turned_and_laid_on_white() -> None:
    grey = torch.arange(2 * 4 * 6, dtype=torch.uint8).reshape(2, 4, 6)
    for form in (grey, grey.numpy(), grey[:, None], grey[..., None]):
        assert torch.equal(pixels(form, (1, 4, 6)), grey[:, None])
    assert torch.equal(pixels(grey[0], (1, 4, 6)), grey[:1, None])
    image = picture("ant", 0)
    turned = image.transpose(Image.Transpose.ROTATE_90)
    turned.getexif()[0x0112] = 6  # The camera lay on its side: turn it clockwise.
    assert torch.equal(pixels(turned), pixels(image))
    assert pixels(Image.new("RGBA", (16, 16), (0, 0, 0, 0))).unique().tolist() == [255]


BYTES = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "kind", "says"),
    [
        (np.zeros((2, 3, 16, 16)), TypeError, r"must be uint8, .* not float64: .* multiply by 255"),
        (torch.zeros(2, 3, 16, 16), TypeError, "must be uint8, .* not torch.float32"),
        (None, TypeError, "not NoneType: give one image or a list of them"),
        (7, TypeError, "not int: give one"),
        (b"photo.png", TypeError, "not bytes: give one"),
        ([None], TypeError, "must be paths, PIL images or uint8 pixels, not NoneType"),
        (BYTES, grace.GraceError, r"shape \(3, 8, 8\), this learner takes \(3, 16, 16\)"),
        (BYTES[0, 0, 0], grace.GraceError, r"shape \(8,\), this learner takes"),
        (as_images(BYTES, (3, 8, 8)), grace.GraceError, r"shape \(3, 8, 8\), this learner"),
        ([], grace.GraceError, "no images were given"),
        (BYTES[:0].new_zeros(0, 3, 16, 16), grace.GraceError, "no images were given"),
        (["nowhere.png"], grace.GraceError, "'nowhere.png'.*does not exist"),
    ],
)
def test_what_is_no_image_is_refused_with_advice(
    images: Any, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        pixels(images)


def test_labels_are_names() -> None:
    for labels in (
        ["7", "8"],
        (7, 8),
        np.array([7, 8]),
        np.array(["7", "8"]),
        torch.tensor([7, 8]),
    ):
        assert as_labels(labels, 2) == ["7", "8"]
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("cat", TypeError, "one name for each image, not 'cat'"),
        (None, TypeError, "labels must be a list, one name for each image, not None"),
        (["cat", None], TypeError, "label None must be a text: give its name"),
        ([0.5, 1.5], TypeError, "label 0.5 must be a text"),
        (["cat"], grace.GraceError, "2 images but 1 labels: give one label each"),
    ]
    for labels, kind, advice in wrong:
        with pytest.raises(kind, match=advice):
            as_labels(labels, 2)
