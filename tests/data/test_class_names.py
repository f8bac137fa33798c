"""Class names: which are allowed, and which are one."""

import pytest

from grace.data.folder_tree import class_name, spelling, twins


def test_names() -> None:
    for name in ("cat", "Käfer", "猫", "a b", "x" * 255):
        assert class_name(name) == name
    wrong = ("", " ", "a\nb", "\x1b[2J", "x" * 256, "é" * 128, "\u202e")
    for name in wrong:
        with pytest.raises(ValueError, match="the class name"):
            class_name(name)
    assert spelling("Cafe\u0301") == spelling("CAFÉ") == "café"
    assert spelling("STRASSE") == spelling("straße")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("names", [("Cat", "cat"), ("caf\u00e9", "cafe\u0301"), ("ß", "SS")])
def test_two_spellings_of_one_name_are_twins(names: tuple[str, str]) -> None:
    """Where folders of both names can stand side by side, they are refused."""
    assert twins([names[0], "dog", names[1]]) == [names]
    assert twins([names[0], "dog"]) == []


def test_a_name_of_megabytes_is_refused_before_it_is_composed() -> None:
    # Composing marks takes time that grows with the square of their number: hours for this name.
    with pytest.raises(ValueError, match="2000000 bytes, more than 255") as caught:
        class_name("\u0301\u0316" * 500_000)
    assert len(str(caught.value)) < 400


def test_a_name_that_is_short_once_composed_is_allowed() -> None:
    # 85 syllables of three letters each: 765 bytes apart, 255 bytes composed.
    assert class_name("\u1112\u1161\u11ab" * 85) == "\ud55c" * 85
