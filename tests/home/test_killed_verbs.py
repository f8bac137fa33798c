"""A verb that is killed where it changes a file and called again ends as if it never had been."""

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from support.kills import Kill, Server, differences

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.parametrize(
    ("verb", "every"), [("forget", 1), ("prune", 3), ("rollback", 3), ("discard", 2)]
)
def test_killed_where_it_changes_a_file(
    server: Server, verb: str, every: int, tmp_path: Path
) -> None:
    """``benchmarks/kill_harness.py`` takes every point of every verb."""
    folders = (tmp_path / str(number) for number in count())
    straight = server.straight(verb, next(folders))
    assert len(straight.points) >= 8
    if verb == "forget":
        assert straight.facts["pictures of class 1"] == []
        assert [change["versions"] for change in straight.facts["changes"]] == [[1, 2, 3]]
    for point in range(1, len(straight.points) + 1, every):
        done = server.chain(verb, next(folders), [Kill(point=point)])
        where = f"{verb}, before {straight.points[point - 1]}"
        assert differences(straight.facts, done.facts) == [], where
