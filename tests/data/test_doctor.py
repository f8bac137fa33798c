"""The examination of an update's images: what it finds, and that loading agrees with it."""

import os
import shutil
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from grace.data.findings import ClassCount, Examination, examine
from grace.data.folder_tree import REFUSED_TEXT
from grace.data.folders import UpdateFolder, load_update
from support.odd_images import bomb, encoded, fill, noise, oriented, put, row


def lines(found: Examination, severity: str = "error") -> list[str]:
    return [finding.text for finding in found.findings if finding.severity == severity]


def only(found: Examination, severity: str = "error") -> str:
    (line,) = lines(found, severity)
    return line


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of twenty images, and two test images of one of them."""
    for number, name in enumerate(["ant", "bee"]):
        fill(tmp_path / "train" / name, 20, seed=1 + number)
    fill(tmp_path / "test" / "ant", 2, seed=10)
    return tmp_path


def test_nothing_to_find(images: Path) -> None:
    found = examine(images, known_classes=["bee", "car"], image_size=8)
    assert found.findings == []
    assert found.is_ready
    assert found.verdict == "Ready: 40 images of 2 classes can be learned."
    assert found.num_images == 42
    assert found.classes == {
        "ant": ClassCount(train=20, test=2, unreadable=0, duplicates=0, is_new=True),
        "bee": ClassCount(train=20, test=0, unreadable=0, duplicates=0, is_new=False),
    }
    assert (found.smallest, found.largest) == ((8, 8), (8, 8))
    assert examine(images).classes["ant"].is_new is None


def test_unreadable_images_are_named_with_their_reasons(images: Path) -> None:
    ant = images / "train" / "ant"
    whole = encoded(noise(1, (64, 64)), "JPEG")
    put(ant / "a.jpg", whole[: len(whole) // 2])
    put(ant / "b.jpg", b"")
    put(ant / "c.jpg", b"not an image")
    put(ant / "d.png", bomb(50000, 50000))
    put(ant / "e.png", bomb(10000, 10000))
    found = examine(images, image_size=8)
    assert only(found) == (
        "unreadable images (5): "
        "'train/ant/a.jpg' (it is damaged, cut off or of a kind that is not supported), "
        "'train/ant/b.jpg' (the file is empty), "
        "'train/ant/c.jpg' (its content is not an image), "
        "'train/ant/d.png' (it has too many pixels), "
        "'train/ant/e.png' (10000×10000 pixels are too many)"
    )
    assert (found.classes["ant"].unreadable, found.num_images) == (5, 47)
    assert found.verdict.startswith("Not ready: unreadable images (5): 'train/ant/a.jpg' (it is")
    assert found.verdict.endswith("; replace or remove them, or set data.skip_unreadable=true.")
    (images / "train" / "bee" / "gone.png").symlink_to(images / "nowhere")
    put(images / "test" / "ant" / "x.png", b"")
    found = examine(images, image_size=8)
    assert only(found).startswith("unreadable images (7): ")
    assert only(found).endswith("(10000×10000 pixels are too many) and 2 more")
    assert found.classes["ant"].unreadable == 6
    assert [count.train for count in found.classes.values()] == [20, 20]


def test_a_narrow_image_does_not_fill_the_memory(images: Path) -> None:
    # 32 pixels wide, it would be 32 · 6.4 million pixels.
    put(images / "train" / "ant" / "line.png", Image.new("L", (1, 200_000)))
    found = examine(images, image_size=32)
    assert lines(found) == [
        "unreadable images (1): 'train/ant/line.png' "
        "(1×200000 pixels are too long and thin to be resized)"
    ]


def test_damaged_files_never_raise(tmp_path: Path) -> None:
    # Decoders of some kinds raise errors of their own; a file may be of any, whatever its name.
    number = 0
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "ICO", "TGA", "DDS", "PPM", "AVIF"):
        whole = encoded(noise(3, (20, 20)), kind)
        for place in range(0, min(len(whole), 400), 7):
            damaged = bytearray(whole)
            damaged[place] ^= 0xFF
            number += 1
            put(tmp_path / "ant" / f"{number}.jpg", bytes(damaged))
    found = examine(tmp_path)
    assert found.num_images == number
    count = found.classes["ant"]
    assert count.train + count.duplicates + count.unreadable == number
    assert 0 < count.unreadable < number


def test_duplicates(images: Path) -> None:
    train, test = images / "train", images / "test"
    shutil.copy(train / "ant" / "001.png", train / "ant" / "z.png")
    shutil.copy(train / "ant" / "002.png", train / "bee" / "z.png")
    shutil.copy(train / "ant" / "003.png", test / "ant" / "z.png")
    found = examine(images)
    assert lines(found) == [
        "images in two classes (1): 'train/ant/002.png' and 'train/bee/z.png'",
        "training images that are test images too (1): 'train/ant/003.png' and 'test/ant/z.png'",
    ]
    assert only(found, "note") == (
        "further copies of images of the same class, which are used once (1): 'train/ant/z.png'"
    )
    assert found.classes["ant"] == ClassCount(
        train=18, test=3, unreadable=0, duplicates=3, is_new=None
    )
    assert found.classes["bee"].duplicates == 1


def test_few_images(tmp_path: Path) -> None:
    for seed, (name, count) in enumerate({"a": 4, "b": 5}.items()):
        fill(tmp_path / name, count, seed)
    found = examine(tmp_path)
    assert lines(found, "warning") == ["classes with at most 4 images (1): 'a' (4)"]
    assert found.is_ready
    assert found.verdict == (
        "Ready, but could be better: classes with at most 4 images (1): 'a' (4); add images: so "
        "few show little of a class."
    )
    (tmp_path / "f").mkdir()  # Refused, so that no advice repeats it.
    assert lines(examine(tmp_path), "warning") == lines(found, "warning")


def test_sizes(images: Path) -> None:
    put(images / "train" / "ant" / "wide.png", noise(50, (30, 5)))
    put(images / "train" / "bee" / "high.png", oriented(noise(51, (20, 10)), 6))
    found = examine(images)
    assert only(found) == (
        "different sizes in pixels (3): 8×8 of 42 images, such as 'train/ant/000.png', "
        "30×5 of 1 image, such as 'train/ant/wide.png', "
        "10×20 of 1 image, such as 'train/bee/high.png'"
    )
    assert (found.smallest, found.largest) == ((8, 8), (10, 20))
    assert lines(examine(images, image_size=10), "warning") == []


def test_layouts_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'.*none' does not exist"):
        examine(tmp_path / "none")
    found = examine(tmp_path)
    assert only(found) == "no class folders"
    assert (found.classes, found.num_images, found.smallest, found.largest) == ({}, 0, None, None)
    fill(tmp_path, 2, seed=1)
    found = examine(tmp_path)
    assert found.verdict.startswith("Not ready: no class folders, only 2 images; put the images")
    fill(tmp_path / "test" / "ant", 2, seed=1)
    assert "could be a class or a part of the images" in only(examine(tmp_path))


def test_folders_and_names_that_are_refused(images: Path) -> None:
    fill(images / "train" / "a\x1b[0m\n", 20, seed=40)
    fill(images / "train" / "Ant", 20, seed=41)
    fill(images / "train" / "caf\u00e9", 20, seed=42)
    fill(images / "train" / "cafe\u0301", 20, seed=43)
    (images / "train" / "empty").mkdir()
    fill(images / "test" / "eel", 20, seed=44)
    found = examine(images)
    assert lines(found) == [
        r"refused class names (1): 'a\x1b[0m\n' has a control character, a line break or bytes "
        "that are not UTF-8",
        "two folders for one class (2): 'train/Ant' and 'train/ant', "
        "'train/cafe\u0301' and 'train/caf\u00e9'",
        "test classes without training images (1): 'test/eel'; did you mean 'bee'?",
        "class folders without images (1): 'train/empty'",
    ]
    assert (found.classes["café"].train, found.classes["empty"].train) == (40, 0)
    assert found.classes["eel"].test == 20
    assert r"a\x1b[0m\n" in found.classes


def test_what_is_not_used(images: Path) -> None:
    put(images / "train" / "ant" / "notes.txt", b"")
    put(images / "train" / "ant" / "a.HEIC", b"")
    put(images / "train" / "ant" / ".hidden.png", b"")
    put(images / "cover.png", noise(70))
    put(images / "raw" / "1.png", noise(71))
    os.mkfifo(images / "train" / "bee" / "pipe.png")
    (images / "test" / "ant" / "link").symlink_to(images)
    found = examine(images)
    assert found.is_ready
    assert lines(found, "warning") == [
        "images outside the class folders, which are ignored (1): 'cover.png'",
        "folders beside train, which are ignored (1): 'raw'",
        "links to folders, which are not followed (1): 'test/ant/link'",
        f"{REFUSED_TEXT} (1): 'train/ant/a.HEIC'",
    ]
    assert lines(found, "note") == [
        "files that are no images, which are ignored (2): 'train/ant/notes.txt', "
        "'train/bee/pipe.png'"
    ]


def test_decoders_are_not_heard(images: Path, recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("always")
    put(images / "train" / "ant" / "big.png", bomb(10000, 10000))
    assert examine(images).classes["ant"].unreadable == 1
    assert len(recwarn) == 0


GOOD = {f"{seed}.png": encoded(noise(seed, (4, 4))) for seed in range(6)}
CONTENTS = {
    **GOOD,
    "same.bmp": encoded(noise(0, (4, 4)), "BMP"),
    "deep/er.PNG": encoded(noise(7, (4, 4))),
    "wide.webp": encoded(row((1, 2, 3), (4, 5, 6)), "WEBP"),
    "empty.jpg": b"",
    "text.jpg": b"no image",
    "cut.png": encoded(noise(8, (40, 40)))[:200],
    "bomb.png": bomb(50000, 50000),
    "notes.txt": b"hello",
    ".hidden.png": b"",
}
FILES = st.sampled_from([*GOOD] * 4 + [*CONTENTS])
TAME = st.dictionaries(
    st.sampled_from(["cat", "dog", "caf\u00e9"]),
    st.lists(FILES, min_size=1, max_size=3),
    min_size=1,
)
WILD = st.dictionaries(
    st.sampled_from(["cat", "Cat", "caf\u00e9", "cafe\u0301", "train", "test", "a\nb", " "])
    | st.text(min_size=1, max_size=8),
    st.lists(FILES, max_size=4),
    max_size=4,
)
PARTS = (
    st.fixed_dictionaries({".": TAME})
    | st.fixed_dictionaries({"train": TAME, "test": TAME})
    | st.fixed_dictionaries({"train": TAME}, optional={"val": TAME, "Test": TAME, ".": WILD})
    | st.dictionaries(st.sampled_from([".", "train", "test", "val"]), WILD)
)


def grow(root: Path, classes: dict[str, list[str]]) -> None:
    """Make class folders; names that no file system takes are left out."""
    for name, files in classes.items():
        if {"/", "\0"} & set(name) or name in (".", ".."):
            continue
        (root / name).mkdir(parents=True, exist_ok=True)
        for file in files:
            put(root / name / file, CONTENTS[file])


@settings(max_examples=60)
@given(
    parts=PARTS,
    loose=st.lists(st.sampled_from([*CONTENTS]), max_size=1),
    image_size=st.sampled_from([None, 5]),
)
def test_any_folder_is_examined_and_what_is_ready_loads(
    parts: dict[str, dict[str, list[str]]], loose: list[str], image_size: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for part, classes in parts.items():
            grow(root / part, classes)
        for file in loose:
            put(root / file, CONTENTS[file])
        found = examine(root, image_size=image_size)
        for text in [found.verdict, *lines(found), *lines(found, "note"), *found.classes]:
            assert "\n" not in text
        loaded = outcome(root, image_size, skip=False)
        assert found.is_ready == isinstance(loaded, UpdateFolder)
        kept = outcome(root, image_size, skip=True)
        if isinstance(kept, str):
            assert not found.is_ready
            assert "\n" not in f"{kept}{loaded}"
        else:
            assert {n: c.train for n, c in found.classes.items()} == Counter(kept.labels)
            assert sum(count.test for count in found.classes.values()) == len(kept.test_labels)


def outcome(root: Path, image_size: int | None, skip: bool) -> UpdateFolder | str:
    try:
        return load_update(root, 3, image_size, skip_unreadable=skip, skip_duplicates=skip)
    except ValueError as error:
        return str(error)
