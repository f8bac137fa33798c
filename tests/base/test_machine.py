"""How much memory and how many cores there are, whoever says so."""

import os
from pathlib import Path

import pytest

from grace.base.machine import memory_bytes, refuse_too_large, usable_cores

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (None, None, PHYSICAL),
        ("max\n", None, PHYSICAL),
        ("1000000\n", None, 1_000_000),
        (None, "2000000\n", 2_000_000),
        (None, "9223372036854771712\n", PHYSICAL),
        ("not a number", "", PHYSICAL),
    ],
)
def test_a_container_may_have_less_memory(
    monkeypatch: pytest.MonkeyPatch, first: str | None, second: str | None, expected: int
) -> None:
    given = {"memory.max": first, "memory.limit_in_bytes": second}

    def read_text(path: Path) -> str:
        if given[path.name] is None:
            raise FileNotFoundError(path)
        return given[path.name]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert memory_bytes() == expected
    refuse_too_large(expected // 2, "a thing")
    with pytest.raises(ValueError, match=f"a thing takes {expected // 2 + 1} bytes"):
        refuse_too_large(expected // 2 + 1, "a thing")


@pytest.mark.parametrize(
    ("quota", "expected"), [("200000 100000\n", 2), ("max 100000\n", 8), ("50000 100000", 1)]
)
def test_a_containers_cores_count(
    monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda path: quota)
    assert usable_cores() == expected
