"""Texts for people: units, similar names, and one short line for what a stranger wrote."""

from collections.abc import Callable
from typing import Any

import pytest

from grace.base.errors import DamagedError, GraceError
from grace.base.words import counted, did_you_mean_one_of, in_bytes, in_count, in_seconds, one_line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (in_bytes, {0: "0 B", 999: "999 B", 6400: "6.4 kB", 1_854_016: "1.9 MB",
                    44_706_048: "44.7 MB", 999_600: "1.0 MB", 123_400_000: "123 MB",
                    2_345_000_000: "2.3 GB"}),
        (in_count, {463_504: "0.46 M", 7_850: "7.8 k", 11_168_832: "11.2 M",
                    223_376_640: "223 M"}),
        (in_seconds, {4.21: "4.2 s", 185: "3:05 min", 7800: "2:10 h"}),
        (lambda n: counted(n, "image"), {0: "0 images", 1: "1 image", 2: "2 images"}),
        (lambda n: counted(n, "class", "classes"), {1: "1 class", 2: "2 classes"}),
    ],
)  # fmt: skip
def test_numbers(words: Callable[[Any], str], expected: dict[Any, str]) -> None:
    assert {value: words(value) for value in expected} == expected


def test_the_choices_are_listed_after_the_nearest() -> None:
    assert did_you_mean_one_of("catt", ["ant", "cat"]) == "; did you mean 'cat'? (known: ant, cat)"
    assert did_you_mean_one_of("x", []) == ""
    names = [f"class{number}" for number in range(13)]
    assert did_you_mean_one_of("x", names[:12]).endswith(", class10, class11)")
    assert did_you_mean_one_of("x", names).endswith(", class10, class11, …)")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it was, ä and 日本 too", "as it was, ä and 日本 too"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b[31mred\x7f\x9b", "\\x1b[31mred\\x7f\\x9b"),
        ("\u202eturned", "\\u202eturned"),
        ("half \ud800 a pair", "half \\ud800 a pair"),
        ("0123456789abcdefghijkl", "01234567…ijkl"),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text, 12 if len(text) == 22 else 100) == shown


def test_errors_are_one_short_line() -> None:
    error = DamagedError("'file' is damaged: " + "x\n" * 10**6 + ": remove it")
    assert len(str(error)) < 1400
    assert str(error).startswith("'file' is damaged: x\\nx")
    assert str(error).endswith(": remove it")
    asking = GraceError("no class 'cta'; did you mean 'cat'?", "list all", where="m")
    assert str(asking) == "m: no class 'cta'; did you mean 'cat'? list all"
