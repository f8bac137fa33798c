"""The examination of an update's images: what it finds, and that loading agrees with it."""

import tempfile
import warnings
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.data.decoding import Reading
from grace.data.findings import Examination, examine
from grace.data.folders import UpdateFolder, load_update
from support.odd_images import bomb, encoded, fill, noise, put, row


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


def test_decoders_are_not_heard(images: Path, recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("always")
    put(images / "train" / "ant" / "big.png", bomb(10000, 10000))
    assert examine(images, Reading()).classes["ant"].unreadable == 1
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
        return load_update(root, Reading(3, image_size, skip_unreadable=skip, skip_duplicates=skip))
    except ValueError as error:
        return str(error)
