"""JSON that has one meaning, and every other kind."""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.base.errors import DamagedError
from grace.base.strict_json import MAX_BYTES, dump, parse

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20) + 1, 10**20 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_round_trip(value: Any) -> None:
    data = dump(value)
    # repr tells 1 from 1.0 and True, and 0.0 from -0.0.
    assert repr(parse(data, "it")) == repr(value)
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    assert json.loads(data) == value
    assert dump({"ä": [1, 2.5, None], "b": True}) == '{"ä":[1,2.5,null],"b":true}\n'.encode()


@given(st.binary(max_size=40) | st.text('[]{}":,\\u0123eE-+.dD8 tfn', max_size=40).map(str.encode))
def test_anything_is_read_as_json_or_refused(data: bytes) -> None:
    try:
        value = parse(data, "it")
    except DamagedError as error:
        said = str(error)
    else:
        said = "it is damaged: not at all"
        assert json.loads(data) == value
    assert said.startswith("it is damaged: ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a": 1, "\\u0061": 1}', "the key 'a' stands twice"),
        (b'[{"x": {"": 1, "": 1}}]', "the key '' stands twice"),
        (b"NaN", "expected value"),
        (b'{"a": -Infinity}', "invalid number"),
        (b"1e999", "the number '1e999' is too large"),
        (b"1" * 21, "has more than 20 digits"),
        (b"-" + b"1" * 21, "has more than 20 digits"),
        (b"1" * 10_000, "out of range"),
        (b"[1]x", "trailing characters"),
        (b"", "EOF"),
        (b"01", "invalid number"),
        (b'"\xed\xa0\x80"', "invalid unicode"),
        ("[]".encode("utf-16"), "expected value"),
        (b"\xef\xbb\xbf[]", "expected value"),
        (b'"\\ud800"', "hex escape"),
        (b'{"\\uDC00": 1}', "lone leading surrogate"),
        (b"[" * 202 + b"]" * 202, "recursion limit"),
        (b'{"a":' * 100_000, "recursion limit"),
        (b'["\\"", "[", ' + b"[{}," * 100_000, "recursion limit"),
    ],
)
def test_refused(data: bytes, says: str) -> None:
    with pytest.raises(DamagedError, match=says) as caught:
        parse(data, "current.json")
    assert str(caught.value).startswith("current.json is damaged: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_limits_themselves_are_allowed() -> None:
    assert parse(b"9" * 20, "it") == 10**20 - 1
    assert parse(b"-" + b"9" * 20, "it") == 1 - 10**20
    assert parse(b"1.7976931348623157e308", "it") == 1.7976931348623157e308
    assert parse(b"[" * 200 + b"]" * 200, "it")
    assert len(parse(b"[" + b"[],{}," * 100 + b"0]", "it")) == 201
    assert parse(b'"' + b"[" * 1000 + b'\\""', "it") == "[" * 1000 + '"'
    assert len(parse(b"[" + b'"[","{[",' * 100 + b"[]]", "it")) == 201
    assert parse(b'"\\ud83d\\ude00"', "it") == "😀"
    assert math.copysign(1, parse(b"-0.0", "it")) == -1


def test_size_and_values_are_limited() -> None:
    with pytest.raises(DamagedError, match=f"{MAX_BYTES + 1} bytes, where at most {MAX_BYTES}"):
        parse(b" " * (MAX_BYTES + 1), "it")
    # One bracket, and a comma after all but the last.
    assert len(parse(b"[" + b"1," * 999_999 + b"1]", "it")) == 1_000_000
    for more in (b"1," * 1_000_000, b"{}," * 500_000):
        with pytest.raises(DamagedError, match="more than 1000000 values"):
            parse(b"[" + more + b"1]", "it")


@pytest.mark.parametrize("unit", [b'\\"', b"\\", b'"', b'"\\', b"[]"])
def test_hostile_text_takes_linear_time(unit: bytes) -> None:
    # Quadratic time would take minutes.
    started = time.perf_counter()
    with pytest.raises(DamagedError):
        parse(b'["' + unit * 500_000, "it")
    assert time.perf_counter() - started < 10


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "not JSON compliant"),
        ([float("inf")], "not JSON compliant"),
        ({"a": 10**20}, "more than 20 digits"),
        ("\ud800", "surrogates not allowed"),
        ({1: "a", "1": "b"}, "the key '1' stands twice"),
        (nested(202), "recursion limit"),
    ],
)
def test_what_could_not_be_read_is_not_written(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dump(value)
    assert parse(dump(nested(200)), "it") == nested(200)
