from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.settings import yaml_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.0e-3", 0.001),
        ("-2", -2),
        ("0.5", 0.5),
        (".5", 0.5),
        ("010", "010"),
        ("on", "on"),
        ("no", "no"),
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


def test_duplicate_keys_are_refused_where_they_stand() -> None:
    with pytest.raises(ValueError, match=r"line 3, column 3: .*'b'"):
        yaml_text.parse("a:\n  b: 1\n  b: 2\n", "here")


def test_no_code_is_run() -> None:
    with pytest.raises(ValueError, match="the tag"):
        yaml_text.parse("!!python/object/apply:os.getcwd []", "here")


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
