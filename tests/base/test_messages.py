"""Messages that quote a stranger's file stay one short line."""

import pytest

from grace.base.errors import DamagedError, GraceError
from grace.base.strict_json import parse
from grace.base.words import one_line


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


def test_errors_quote_no_megabytes() -> None:
    error = DamagedError("'file' is damaged: " + "x\n" * 10**6 + ": remove it")
    assert len(str(error)) < 1400
    assert str(error).startswith("'file' is damaged: x\\nx")
    assert str(error).endswith(": remove it")


def test_more_than_a_million_values_are_not_read() -> None:
    # One bracket, and a comma after all but the last.
    assert len(parse(b"[" + b"1," * 999_999 + b"1]", "it")) == 1_000_000
    with pytest.raises(DamagedError, match="more than 1000000 values"):
        parse(b"[" + b"1," * 1_000_000 + b"1]", "it")
    with pytest.raises(DamagedError, match="more than 1000000 values"):
        parse(b"[" + b"{}," * 500_000 + b"1]", "it")


def test_a_remedy_follows_a_question_without_a_colon() -> None:
    error = GraceError("no class 'cta'; did you mean 'cat'?", "list all", where="m")
    assert str(error) == "m: no class 'cta'; did you mean 'cat'? list all"
