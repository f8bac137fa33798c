"""What the system says of the processor."""

from pathlib import Path

import pytest

from grace.base.machine import usable_cores


@pytest.mark.parametrize(
    ("quota", "expected"), [("200000 100000\n", 2), ("max 100000\n", 8), ("50000 100000", 1)]
)
def test_a_containers_cores_count(
    monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda path: quota)
    assert usable_cores() == expected
