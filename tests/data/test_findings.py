"""One table of what is wrong with folders: what the doctor says, and what an update refuses."""

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from grace.base.errors import GraceError
from grace.data.decoding import Reading
from grace.data.findings import ClassCount, examine
from grace.data.folders import load_update
from grace.data.images import Dataset
from support.odd_images import bomb, encoded, fill, noise, oriented, put, row

Change = Callable[[Path], object]


def start(root: Path) -> None:
    """Two classes of five images, and two test images of one of them."""
    for seed, name in enumerate(["ant", "bee"]):
        fill(root / "train" / name, 5, seed=1 + seed)
    fill(root / "test/ant", 2, seed=10)


def unreadable(root: Path) -> None:
    whole = encoded(noise(1, (64, 64)), "JPEG")
    for name, content in {
        "a.jpg": whole[: len(whole) // 2],
        "b.jpg": b"",
        "c.jpg": b"a list of things to buy",
        "d.png": bomb(50000, 50000),
        "e.png": bomb(10000, 10000),
    }.items():
        put(root / "train/ant" / name, content)


def copies(root: Path) -> None:
    ant = root / "train/ant"
    put(ant / "z.png", (ant / "001.png").read_bytes())
    # The same pixels in another file.
    put(ant / "again.bmp", encoded(Image.open(ant / "001.png"), "BMP"))
    put(root / "train/bee/z.png", (ant / "002.png").read_bytes())
    put(root / "test/ant/z.png", (ant / "003.png").read_bytes())


def spellings(root: Path) -> None:
    for seed, name in enumerate(["Ant", "caf\u00e9", "cafe\u0301", "ß", "SS"]):
        fill(root / "train" / name, 5, seed=40 + seed)


def unused(root: Path) -> None:
    for name in ("train/ant/notes.txt", "train/ant/a.HEIC", "train/ant/.hidden.png"):
        put(root / name, b"")
    put(root / "train/.git/1.png", b"")
    put(root / "cover.png", noise(70))
    put(root / "raw/1.png", noise(71))
    os.mkfifo(root / "train/bee/pipe.png")
    (root / "test/ant/link").symlink_to(root)


def sizes(root: Path) -> None:
    put(root / "train/ant/wide.png", noise(50, (30, 5)))
    put(root / "train/bee/high.png", oriented(noise(51, (20, 10)), 6))


def line(root: Path) -> None:
    # 8 pixels wide, it would be 8 · 12 million pixels.
    put(root / "train/ant/line.png", Image.new("L", (1, 1_500_000)))


AS_IS = "(it is damaged, cut off or of a kind that is not supported)"
CASES: dict[str, tuple[Change, dict[str, str]]] = {
    "nothing": (lambda _: None, {}),
    "unreadable": (
        unreadable,
        {
            f"unreadable images (5): 'train/ant/a.jpg' {AS_IS}, 'train/ant/b.jpg' (the file is "
            "empty), 'train/ant/c.jpg' (its content is not an image), 'train/ant/d.png' (it has "
            "too many pixels), 'train/ant/e.png' (10000×10000 pixels are too many)": "error"
        },
    ),
    "a link to nothing": (
        lambda root: (root / "train/bee/gone.png").symlink_to(root / "nowhere"),
        {"unreadable images (1): 'train/bee/gone.png' (it is a link to nothing)": "error"},
    ),
    "a name that breaks the line": (
        lambda root: put(root / "train/ant/a\nb\udce9.png", b""),
        {r"unreadable images (1): 'train/ant/a\nb\udce9.png' (the file is empty)": "error"},
    ),
    "too thin": (
        line,
        {
            "unreadable images (1): 'train/ant/line.png' (1×1500000 pixels are too long and thin "
            "to be resized)": "error"
        },
    ),
    "copies": (
        copies,
        {
            "images in two classes (1): 'train/ant/002.png' and 'train/bee/z.png'": "error",
            "training images that are test images too (1): 'train/ant/003.png' and "
            "'test/ant/z.png'": "error",
            "classes with at most 4 images (1): 'ant' (3)": "warning",
        },
    ),
    "few": (
        lambda root: (root / "train/ant/004.png").unlink(),
        {"classes with at most 4 images (1): 'ant' (4)": "warning"},
    ),
    "spellings": (
        spellings,
        {
            "two folders for one class (3): 'train/Ant' and 'train/ant', 'train/cafe\u0301' and "
            "'train/caf\u00e9', 'train/SS' and 'train/ß'": "error"
        },
    ),
    "classes": (
        lambda root: (fill(root / "test/ants", 5, seed=44), (root / "train/empty").mkdir()),
        {
            "test classes without training images (1): 'test/ants'; did you mean 'ant'?": "error",
            "class folders without images (1): 'train/empty'": "error",
        },
    ),
    "unused": (
        unused,
        {
            "files and folders that are not used (6): 'cover.png' (an image outside the class "
            "folders), 'raw' (a folder beside train), 'train/ant/a.HEIC' (AVIF or HEIC: convert "
            "it to PNG or JPEG), 'train/ant/notes.txt' (no image), 'train/bee/pipe.png' (no "
            "image) and 1 more": "warning"
        },
    ),
    "a refused name": (
        lambda root: fill(root / "train/a\nb\udce9", 5, seed=60),
        {
            r"refused class names (1): 'a\nb\udce9' has a control character, a line break or bytes "
            "that are not UTF-8": "error"
        },
    ),
    "no test classes": (
        lambda root: (root / "test/ant").rename(root / "test/.ant"),
        {"no class folders in 'test'": "error"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_doctor_lists_it_and_an_update_refuses_its_first_error(
    tmp_path: Path, case: str
) -> None:
    start(tmp_path)
    change, expected = CASES[case]
    change(tmp_path)
    found = examine(tmp_path, Reading(size=8))
    texts = {finding.text: finding.severity for finding in found.findings}
    assert texts == expected
    errors = [finding for finding in found.findings if finding.severity == "error"]
    assert found.is_ready == (not errors)
    start_of = ("Not ready", "Ready")[found.is_ready]
    assert found.verdict.startswith(start_of)
    assert "\n" not in found.verdict
    if errors:
        with pytest.raises(GraceError) as caught:
            load_update(tmp_path, Reading(3, 8))
        assert (caught.value.what, caught.value.remedy) == (errors[0].text, errors[0].remedy)
        assert caught.value.where == str(tmp_path)
        str(caught.value).encode()
    else:
        notes = [text for text in texts if "at most 4" not in text]
        assert list(load_update(tmp_path, Reading(3, 8)).notes) == notes


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
    with pytest.raises(GraceError, match="could be a class or a part of the images") as caught:
        load_update(tmp_path, Reading(3))
    assert f"'{folder}'" in str(caught.value)


def test_no_folder_and_no_class_folders(tmp_path: Path) -> None:
    for read in (examine, load_update):
        with pytest.raises(GraceError, match=r"'.*none' does not exist: check the spelling"):
            read(tmp_path / "none", Reading())
    found = examine(tmp_path, Reading())
    assert (found.classes, found.num_images) == ({}, 0)
    assert found.verdict.startswith("Not ready: no class folders; put the images of each class")


def test_without_a_size_all_images_must_have_one(tmp_path: Path) -> None:
    start(tmp_path)
    sizes(tmp_path)
    found = examine(tmp_path, Reading())
    (finding,) = found.findings
    assert finding.text == (
        "different sizes in pixels (3): 8×8 of 12 images, such as 'train/ant/000.png', 30×5 of 1 "
        "image, such as 'train/ant/wide.png', 10×20 of 1 image, such as 'train/bee/high.png'"
    )
    with pytest.raises(GraceError, match=r"different sizes .*set data\.image_size"):
        load_update(tmp_path, Reading(3))
    assert load_update(tmp_path, Reading(3, 5)).train.images.shape == (3, 5, 5)


def test_what_is_left_out_is_counted_class_by_class(tmp_path: Path) -> None:
    start(tmp_path)
    unreadable(tmp_path)
    copies(tmp_path)
    found = examine(tmp_path, Reading(size=8), ["bee", "car"])
    assert found.num_images == 21
    assert found.classes == {
        "ant": ClassCount(train=3, test=3, unreadable=5, duplicates=4, is_new=True),
        "bee": ClassCount(train=5, test=0, unreadable=0, duplicates=1, is_new=False),
    }
    skips = examine(tmp_path, Reading(size=8, skip_unreadable=True, skip_duplicates=True))
    assert skips.is_ready
    assert skips.classes["ant"].is_new is None
    loaded = load_update(tmp_path, Reading(3, 8, skip_unreadable=True, skip_duplicates=True))
    assert loaded.train.labels.tolist() == [0] * 3 + [1] * 5
    assert len(loaded.test) == 3


def test_decoders_are_not_heard(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("always")
    start(tmp_path)
    put(tmp_path / "train" / "ant" / "big.png", bomb(10000, 10000))
    assert examine(tmp_path, Reading()).classes["ant"].unreadable == 1
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
        found = examine(root, Reading(size=image_size))
        texts = [finding.text for finding in found.findings]
        assert "\n" not in "".join([found.verdict, *texts, *found.classes])
        loaded = outcome(root, image_size, skip=False)
        assert found.is_ready == isinstance(loaded, Dataset)
        kept = outcome(root, image_size, skip=True)
        if isinstance(kept, str):
            assert not found.is_ready
            assert "\n" not in f"{kept}{loaded}"
        else:
            counts = found.classes.values()
            assert [count.train for count in counts] == kept.train.labels.bincount().tolist()
            assert sum(count.test for count in counts) == len(kept.test)


def outcome(root: Path, image_size: int | None, skip: bool) -> Dataset | str:
    try:
        return load_update(root, Reading(3, image_size, skip_unreadable=skip, skip_duplicates=skip))
    except ValueError as error:
        return str(error)
