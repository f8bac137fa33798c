"""Where the user's cache folder is."""

from pathlib import Path

import pytest

from grace.base.machine import cache_folder


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "HOME/.cache/grace/twins"),
        ("", "HOME/.cache/grace/twins"),
        ("HOME/caches", "HOME/caches/grace/twins"),
        ("caches", "HOME/.cache/grace/twins"),
    ],
)
def test_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None, expected: str
) -> None:
    home = str(tmp_path)
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given.replace("HOME", home))
    assert cache_folder("twins") == Path(expected.replace("HOME", home))
