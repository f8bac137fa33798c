"""Where the user's cache folder is."""

from pathlib import Path

import pytest

from grace.storage.cache_folder import cache_folder


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "/home/me/.cache/grace/twins"),
        ("", "/home/me/.cache/grace/twins"),
        ("/var/caches", "/var/caches/grace/twins"),
        ("caches", "/home/me/.cache/grace/twins"),
    ],
)
def test_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder("twins") == Path(expected)
