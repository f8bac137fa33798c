"""Nested settings as one mapping."""

from grace.settings.flat import flatten


def test_flatten() -> None:
    nested = {"a": {"b": 1, "c": {"d": [2]}}, "e": None, "f": {}}
    assert flatten(nested) == {"a.b": 1, "a.c.d": [2], "e": None, "f": {}}
