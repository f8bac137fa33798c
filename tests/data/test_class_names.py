"""Class names that a person may have meant to be one."""

import pytest

from grace.data.class_names import class_name, similar_names, spelling, twins


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("golden_retriver", "golden_retriever"),
        ("Cat", "cat"),
        ("fire truck", "fire_truck"),
        ("fire-truck", "FireTruck"),
        ("dogs", "dog"),
        ("box", "boxes"),
        ("cherries", "cherry"),
        ("caf\u00e9", "cafe\u0301s"),
        ("bicylce", "bicycle"),  # 2 · 6 / 14
        ("cow_2", "cows_2"),  # 2 · 4 / 9
    ],
)
def test_alike(name: str, other: str) -> None:
    assert list(similar_names([name], [other])) == [(name, other)]
    assert list(similar_names([other, name])) == [(name, other)]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("class_12", "class_13"),
        ("n01440764", "n01440767"),
        ("cat", "cut"),  # 2 · 2 / 6
        ("willow tree", "maple tree"),
        ("woman", "man"),  # 2 · 3 / 8
        ("!", "_"),
        ("\u30a2\u30ea", "\u30a2\u30ab"),
        ("\u0915\u093f", "\u0915\u093e"),  # Indic vowel signs are no separators
    ],
)
def test_unlike(name: str, other: str) -> None:
    assert list(similar_names([name], [other])) == []


def test_the_ratio_must_exceed_the_cutoff() -> None:
    assert list(similar_names(["red fox", "red box"])) == []  # 2 · 5 / 12
    assert list(similar_names(["red fox", "red box"], cutoff=0.83)) == [("red box", "red fox")]
    assert list(similar_names(["red fox", "red box"], cutoff=5 / 6)) == []


def test_known_names_are_not_compared_with_each_other_or_themselves() -> None:
    known = ["dog", "dogs", "cat"]
    assert list(similar_names(["cat", "bird"], known)) == []
    assert list(similar_names(["cats"], known)) == [("cats", "cat")]
    # Both the known and the alike name come with the images.
    assert list(similar_names(["cat", "cats"], known)) == [("cats", "cat")]


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
