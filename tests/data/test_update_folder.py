"""The images of an update: layouts, names, odd files and duplicates."""

import os
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grace.base.errors import GraceError
from grace.data.folders import UpdateFolder, load_update
from support.odd_images import animated, bomb, encoded, fill, noise, oriented, put, row


def load(root: Path, **options: object) -> UpdateFolder:
    return load_update(root, 3, None, **options)  # type: ignore[arg-type]


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
    assert (list(found.test_labels), list(found.test_paths), list(found.notes)) == ([], [], [])


@pytest.mark.parametrize("name", ["test", "val", "validation"])
def test_images_stand_by_class_and_then_by_file(images: Path, name: str) -> None:
    (images / "test").rename(images / name)
    found = load(images)
    assert found.labels == ["ant"] * 3 + ["bee"] * 3
    assert [path.name for path in found.paths] == ["000.png", "001.png", "002.png"] * 2
    assert torch.equal(found.images.pixels[3], planes(noise(1000)))
    assert torch.equal(found.test_images.pixels[1], planes(noise(10001)))
    assert list(found.test_labels) == ["ant", "ant"]
    assert found.test_paths[0] == images / name / "ant" / "000.png"


def test_grey_squares_and_a_limit(images: Path) -> None:
    put(images / "train" / "ant" / "000.png", row((200, 100, 50), (200, 100, 50)))
    found = load_update(images, 1, 4, max_images_per_class=1)
    assert found.images.shape == (1, 4, 4)
    # .299 · 200 + .587 · 100 + .114 · 50 = 124.2
    assert found.images.pixels[0].unique().tolist() == [124]
    assert (len(found.labels), list(found.test_labels)) == (2, ["ant"])
    refused("leaves none: use 1 or more", lambda: load(images, max_images_per_class=0))


def test_a_class_that_is_only_tested_is_refused(images: Path) -> None:
    fill(images / "test" / "ants", 1, seed=20)
    assert refused("without training images", lambda: load(images)) == (
        f"{images}: test classes without training images (1): 'test/ants'; did you mean 'ant'? "
        "give them such images, or remove them"
    )


def test_no_folder_and_no_class_folders(tmp_path: Path) -> None:
    refused("'.*none' does not exist: check the spelling", lambda: load(tmp_path / "none"))
    refused(": no class folders: put the images of each class", lambda: load(tmp_path))
    fill(tmp_path, 3, seed=1)
    refused(": no class folders, only 3 images: put", lambda: load(tmp_path))
    fill(tmp_path / "train" / "ant", 1, seed=1)
    (tmp_path / "test").mkdir()
    refused(": no class folders in 'test': put", lambda: load(tmp_path))


def test_an_empty_class_folder(images: Path) -> None:
    (images / "test" / "bee" / "deeper").mkdir(parents=True)
    refused(r"class folders without images \(1\): 'test/bee': add", lambda: load(images))


@pytest.mark.parametrize(
    ("layout", "folder"),
    [
        (["test/ant/1", "test/bee/1"], "test"),  # nothing to train on
        (["Train/ant/1", "Test/ant/1"], "Test"),
        (["train/1", "train/ant/1", "test/ant/1"], "test"),  # one loose image
    ],
)
def test_a_part_that_could_be_a_class_is_refused(
    tmp_path: Path, layout: list[str], folder: str
) -> None:
    for seed, name in enumerate(layout):
        put(tmp_path / f"{name}.png", noise(seed))
    message = refused("could be a class or a part of the images", lambda: load(tmp_path))
    assert f"'{folder}'" in message


def test_what_is_not_used_is_counted(images: Path) -> None:
    put(images / "train" / "ant" / "Thumbs.db", b"")
    put(images / "train" / "ant" / ".hidden.png", b"")
    put(images / "train" / ".git" / "1.png", b"")
    put(images / "test" / "ant" / "notes.txt", b"hello")
    put(images / "cover.png", noise(70))
    put(images / "raw" / "1.png", noise(71))
    put(images / "elsewhere" / "1.png", noise(72))
    (images / "train" / "bee" / "more").symlink_to(images / "elsewhere")
    found = load(images)
    assert len(found.labels) == 6
    assert list(found.notes) == [
        "images outside the class folders, which are ignored (1): 'cover.png'",
        "folders beside train, which are ignored (2): 'elsewhere', 'raw'",
        "links to folders, which are not followed (1): 'train/bee/more'",
        "files that are no images, which are ignored (2): 'train/ant/Thumbs.db', "
        "'test/ant/notes.txt'",
    ]


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


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    fill(tmp_path / "ant", 1, seed=1)
    os.mkfifo(tmp_path / "ant" / "pipe.jpg")
    assert list(load(tmp_path).notes) == [
        "files that are no images, which are ignored (1): 'ant/pipe.jpg'"
    ]


def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    # A path longer than the system takes, so that it fails for the superuser too.
    fill(tmp_path / "ant", 1, seed=1)
    parent = os.open(tmp_path / "ant", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("x" * 250, dir_fd=parent)
        child = os.open("x" * 250, os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = child
    os.close(parent)
    refused(r"cannot be listed \(1\): 'ant/x.*xxx': allow them", lambda: load(tmp_path))


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


def test_print_colours_are_seen_as_colours(tmp_path: Path) -> None:
    put(tmp_path / "ant" / "a.jpeg", encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = load(tmp_path).images.pixels[0, :, 4, 4].tolist()
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encoded(noise(1, (64, 64)), "JPEG")[:800], "it is damaged, cut off or"),
        (b"", "the file is empty"),
        (b"a list of things to buy", "its content is not an image"),
        (bomb(50000, 50000), "it has too many pixels"),
        (bomb(10000, 10000), "10000×10000 pixels are too many"),
        (bomb(400, 400), "it is damaged, cut off or"),
    ],
    ids=["truncated", "empty", "text", "bomb", "half a bomb", "too few pixels"],
)
def test_unreadable_images_are_named_or_left_out(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    fill(tmp_path / "ant", 2, seed=1)
    put(tmp_path / "ant" / "001.jpg", content)
    (tmp_path / "ant" / "001.png").unlink()
    named = rf"unreadable images.* \(1\): 'ant/001.jpg' \({reason}"
    refused(named, lambda: load(tmp_path))
    found = load(tmp_path, skip_unreadable=True)
    assert (len(found.labels), len(found.notes)) == (1, 1)
    assert re.match(named, found.notes[0])
    (tmp_path / "ant" / "000.png").unlink()
    for seed, name in enumerate(["ant", "bee"]):
        fill(tmp_path / name, seed, seed=5)
        lost = r"classes without usable training images \(1\): 'ant': add some"
        refused(lost, lambda: load(tmp_path, skip_unreadable=True))


def test_images_of_other_sizes(images: Path) -> None:
    put(images / "train" / "bee" / "odd.png", noise(60, (6, 8)))
    refused(r"different sizes .*, 6×8 of 1 image, such as 'train/bee/odd", lambda: load(images))
    assert load_update(images, 3, 5).images.shape == (3, 5, 5)
    (images / "train" / "bee" / "odd.png").unlink()
    fill(images / "test" / "ant", 2, seed=61, size=(9, 4))
    refused("8×8 of 6 images, .* 9×4 of 2 images, .* set data.image_size", lambda: load(images))


def test_names_of_any_script_and_length(tmp_path: Path) -> None:
    names = [
        "画" * 66 + "ab",
        "naïve café",
        " padded ",
        "\U0001f41d",
        "CON",
        "a'b\"c\\",
        "-rf",
        "%s{}",
    ]
    assert len(names[0].encode()) == 200
    for seed, name in enumerate(names):
        fill(tmp_path / name, 1, seed=seed)
    assert load(tmp_path).labels == sorted(names)


def test_a_name_is_composed(tmp_path: Path) -> None:
    composed, decomposed = "café", unicodedata.normalize("NFD", "café")
    assert len(decomposed.encode()) == 6  # e and an accent
    fill(tmp_path / "mac" / "train" / decomposed, 2, seed=1)
    fill(tmp_path / "mac" / "test" / composed, 1, seed=2)
    fill(tmp_path / "linux" / "train" / composed, 2, seed=1)
    fill(tmp_path / "linux" / "test" / composed, 1, seed=2)
    mac, linux = load(tmp_path / "mac"), load(tmp_path / "linux")
    assert mac.labels == linux.labels == [composed] * 2
    assert mac.digest == linux.digest


@pytest.mark.parametrize("names", [("Cat", "cat"), ("caf\u00e9", "cafe\u0301"), ("ß", "SS")])
def test_two_spellings_of_one_class_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    for seed, name in enumerate(names):
        fill(tmp_path / name, 1, seed=seed)
    # File systems that ignore case, or store names in one normal form, cannot hold both folders.
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("one folder here has both names; test_class_names.py has the rule itself")
    message = refused("two folders for one class", lambda: load(tmp_path))
    assert all(name in message for name in names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (" \t", r"' \\t' is blank"),
        ("\u2003", "is blank"),
        ("a\nb", r"'a\\nb' has a control character"),
        ("a\x1b[31m", r"'a\\x1b\[31m' has a control character"),
        ("a\u2028b", r"'a\\u2028b' has a control character"),
        ("caf\udce9", r"'caf\\udce9' has .* bytes that are not UTF-8"),
        # Composed form of this letter: two letters of three bytes each.
        ("\u0958" * 43, "has 258 bytes, more than 255"),
    ],
)
def test_names_that_are_no_text_are_refused(tmp_path: Path, name: str, message: str) -> None:
    fill(tmp_path / name, 1, seed=1)
    refused(rf"refused class names .*{message}.*: rename the folders", lambda: load(tmp_path))


def test_a_file_name_cannot_break_the_line(tmp_path: Path) -> None:
    put(tmp_path / "ant" / "a\nb\udce9.png", b"")
    message = refused("the file is empty", lambda: load(tmp_path))
    assert r"a\nb\udce9.png" in message
    message.encode()


def copied(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    return target


def test_a_further_copy_is_used_once(images: Path) -> None:
    first = images / "train" / "ant" / "001.png"
    copied(first, images / "train" / "ant" / "more" / "copy.png")
    # The same pixels in another file.
    put(images / "train" / "ant" / "again.bmp", encoded(Image.open(first), "BMP"))
    copied(images / "test" / "ant" / "000.png", images / "test" / "ant" / "zzz.png")
    found = load(images)
    assert [path.name for path in found.paths[:3]] == ["000.png", "001.png", "002.png"]
    assert (len(found.labels), len(found.test_labels)) == (6, 2)
    assert list(found.notes) == [
        "further copies of images of the same class, which are used once (3): "
        "'train/ant/again.bmp', 'train/ant/more/copy.png', 'test/ant/zzz.png'"
    ]


def test_an_image_of_two_classes(images: Path) -> None:
    first = images / "train" / "ant" / "002.png"
    again = copied(first, images / "train" / "ant" / "again.png")
    second = copied(first, images / "train" / "bee" / "x.png")
    pair = "'train/ant/002.png' and 'train/bee/x.png'"
    refused(rf"\(1\): {pair}.*set data.skip_duplicates=true$", lambda: load(images))
    found = load(images, skip_duplicates=True)
    assert found.labels == ["ant"] * 2 + ["bee"] * 3
    assert not {first, again, second} & set(found.paths)
    assert list(found.notes) == [f"images in two classes, which are left out (1): {pair}"]


def test_a_test_image_that_is_a_training_image(images: Path) -> None:
    train = images / "train" / "bee" / "000.png"
    copied(train, images / "test" / "ant" / "x.png")
    pair = "'train/bee/000.png' and 'test/ant/x.png'"
    refused(rf"\(1\): {pair}.*set data.skip_duplicates=true$", lambda: load(images))
    found = load(images, skip_duplicates=True)
    assert found.labels == ["ant"] * 3 + ["bee"] * 2
    assert len(found.test_labels) == 3
    assert list(found.notes) == [
        f"training images that are test images too, which are left out (1): {pair}"
    ]
    for path in (images / "train" / "bee").iterdir():
        copied(path, images / "test" / "ant" / f"x{path.name}")
    lost = r"classes without usable training images \(1\): 'bee'"
    refused(lost, lambda: load(images, skip_duplicates=True))


def test_test_images_that_are_all_shared(images: Path) -> None:
    for path in list((images / "test" / "ant").iterdir()):
        copied(path, images / "test" / "bee" / path.name)
    found = load(images, skip_duplicates=True)
    assert found.test_images is None
    assert list(found.test_labels) == []
    assert len(found.labels) == 6


def test_the_digest_tells_images_names_and_parts_apart(images: Path, tmp_path: Path) -> None:
    def variant(change: Callable[[Path], object]) -> str:
        root = tmp_path / "variant"
        shutil.rmtree(root, ignore_errors=True)
        for part in ("train", "test"):
            shutil.copytree(images / part, root / part)
        change(root)
        return load(root).digest

    def renamed(root: Path, old: str, new: str) -> None:
        (root / old).rename(root / new)

    digest = load(images).digest
    assert len(bytes.fromhex(digest)) == 32
    assert variant(lambda _: None) == digest
    assert variant(lambda root: put(root / "train/bee/notes.txt", b"")) == digest
    assert variant(lambda root: renamed(root, "train/bee/002.png", "train/bee/003.png")) == digest
    others = [
        variant(lambda root: put(root / "train/bee/002.png", noise(99))),
        variant(lambda root: put(root / "test/ant/001.png", noise(99))),
        variant(lambda root: renamed(root, "train/bee", "train/eel")),
        variant(lambda root: renamed(root, "train/bee/000.png", "train/bee/003.png")),
        variant(lambda root: renamed(root, "train/bee/002.png", "train/ant/003.png")),
        variant(lambda root: renamed(root, "test/ant/001.png", "train/ant/001.PNG")),
        variant(lambda root: shutil.rmtree(root / "test")),
    ]
    assert len({digest, *others}) == 8
