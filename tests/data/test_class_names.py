"""Class names: which are allowed, and which are one."""

from unicodedata import normalize

import pytest

from grace.base.errors import GraceError
from grace.data.folder_tree import class_name, spelling, twins

ALLOWED = (
    "cat", "Käfer", "猫", "a b", "x" * 255, "می\u200cخواهم", "क्\u200dष", "東京\u3000駅",
    "café\u00a0noir", "👩\u200d🚀",
    # 85 syllables of three letters each: 765 bytes apart, 255 bytes composed.
    "\ud55c" * 85,
)  # fmt: skip
HIDING = ("a\u200db", "\u202eabc", "ab\u2066", "\u200c", "\u3000", "a\ud800", "\x1b[2J", "a\nb")


def test_names() -> None:
    for name in ALLOWED:
        assert class_name(name) == class_name(normalize("NFD", name)) == name
    for name in ("", " ", "x" * 256, "é" * 128, *HIDING):
        with pytest.raises(GraceError, match="the class name"):
            class_name(name)
    assert spelling("Cafe\u0301") == spelling("CAFÉ") == "café"
    assert spelling("STRASSE") == spelling("straße")
    assert twins(["é\u200d", "é", "a b", "a\u00a0b"]) == [("é\u200d", "é"), ("a b", "a\u00a0b")]


def test_a_name_of_megabytes_is_refused_before_it_is_composed() -> None:
    # Composing marks takes time that grows with the square of their number: hours for this name.
    with pytest.raises(ValueError, match="2000000 bytes, more than 255") as caught:
        class_name("\u0301\u0316" * 500_000)
    assert len(str(caught.value)) < 400
