from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.base.errors import GraceError
from grace.settings import yaml_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-2", -2),
        (".5", 0.5),
        ("010", "010"),
        ("on", "on"),
        ("true", True),
        ("", None),
        ("null", None),
        ("~", None),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    read = yaml_text.parse(text, "here")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a:\n  b: 1\n  b: 2\n", "here: line 3, column 3: the key 'b' stands there twice"),
        ("!!python/object/apply:os.getcwd []", "line 1, column 1: the tag"),
        ("a: !!set {b}", "the tag"),
        ("a: &a [*a]", "no value before it has the anchor '&a'"),
        ("a: &a 1\nb: &a 2", "the anchor '&a' stands there twice"),
        ("\n".join(f"k{n}: 1" for n in range(50_001)), "it has more than 100000 keys and values"),
        ("[" * 41, "it is nested more than 40 deep"),
        ("a: &a [1, 1]\nb: [" + "*a, " * 33_400 + "]", "it has more than 100000 keys and values"),
        ("? [1]\n: 2", "a key should be a word"),
        ("9223372036854775808", "is beyond the whole numbers of 64 bits"),
        ('"\\0"', "a text has a zero byte"),
        ('"\\ud800": 1', "half a surrogate pair"),
        ("a\n---\nb", "it has 2 documents; keep one"),
        ("[1", "line 1, column 3"),
        ("#" * (2**20 + 1), "more than 1048576"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(GraceError) as caught:
        yaml_text.parse(text, "here")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


def test_an_alias_repeats_its_value() -> None:
    assert yaml_text.parse(b"\xef\xbb\xbfa: &a {b: 1}\nc: *a", "here") == {
        "a": {"b": 1},
        "c": {"b": 1},
    }


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**63, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(PLAIN)
def test_what_is_dumped_is_read_back(value: Any) -> None:
    assert yaml_text.parse(yaml_text.dump(value), "here") == value
