"""A run, a learner or a verb that was killed at any moment ends as if it never had been.

``benchmarks/kill_harness.py`` does the same at every point and many more times.
"""

import random
import re
import sys
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from support import kills
from support.kills import Kill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


class Harness:
    """Works done straight, once, and again with kills, in folders of their own."""

    def __init__(self, root: Path) -> None:
        self._folders = (root / str(number) for number in count())
        self.straight = cache(lambda work: kills.straight(work, next(self._folders)))

    def chain(self, work: str, *moments: Kill, judge: str | None = None) -> tuple[int, list[str]]:
        """Count the killed processes, and name what differs from the straight ``judge``."""
        facts, num_killed = kills.chain(work, next(self._folders), moments)
        return num_killed, kills.differences(self.straight(judge or work).facts, facts)

    def point(self, work: str, name: str, which: int = 0) -> Kill:
        """Find the ``which``-th point of a name."""
        points = self.straight(work).points
        return Kill(point=[n for n, own in enumerate(points, 1) if own.startswith(name)][which])


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(tmp_path_factory.mktemp("kills"))


def test_the_works_come_across_everything(harness: Harness) -> None:
    tasks = harness.straight("run").facts["tasks"]
    assert [task["verdict"] for task in tasks] == ["start", "grow", "compress"]
    documents = harness.straight("learner").facts["documents"]
    verdicts = [document["history"][-1]["outcome"]["verdict"] for document in documents]
    assert verdicts == ["start", "refresh", "grow", "refresh", "compress"]
    statuses = [document["status"] for document in documents]
    assert statuses == ["accepted", "accepted", "accepted", "rejected", "accepted"]
    # Forgotten in every version, revived in the last.
    assert [document["forgotten"] for document in documents] == [[1], [1], [1], [1], []]
    assert harness.straight("encoded_learner").facts["encoded"] == [["encoded", "lengths"]] * 4


def landmarks(points: Sequence[str], draws: random.Random) -> list[int]:
    """Choose one point of each kind: halfway through, and before, each kind of file is changed."""
    kinds: dict[str, list[int]] = {}
    file = ""
    # Backwards: what is written is named where it is put in its place.
    for number, point in reversed([*enumerate(points, 1)]):
        act, _, name = point.rpartition(" ")
        if act in ("replace", "unlink", "rmdir", "ftruncate"):
            file = re.sub(r"[0-9a-f]{64}|[0-9]{4}", "N", name)
            kinds.setdefault(f"{act} {file}", []).append(number)
        elif point == "half of write":
            # The pid in the lock is written where the lock lies.
            kinds.setdefault(f"half of {file}, {points[number - 2]}", []).append(number)
    return sorted(draws.choice(numbers) for numbers in kinds.values())


@pytest.mark.parametrize(
    ("verb", "kinds"),
    [("forget", 10), ("prune", 9), ("rollback", 9), ("discard", 4), ("set_memory", 13)],
)
def test_a_verb_is_killed_where_it_changes_a_file(harness: Harness, verb: str, kinds: int) -> None:
    """``benchmarks/kill_harness.py`` takes every point of every verb."""
    straight = harness.straight(verb)
    if verb == "forget":
        assert straight.facts["pictures of class 1"] == []
        told = [(change["kind"], change["versions"]) for change in straight.facts["changes"]]
        assert told == [*[("learn", [])] * 3, ("forget", [1, 2, 3])]
    chosen = landmarks(straight.points, random.Random(f"suite {verb}"))  # noqa: S311
    assert len(chosen) == kinds, [straight.points[point - 1] for point in chosen]
    for point in chosen:
        where = f"{verb}, before {straight.points[point - 1]}"
        assert harness.chain(verb, Kill(point=point)) == (1, []), where


@pytest.mark.parametrize("work", ["run", "learner", "encoded_learner"])
def test_killed_at_any_time(harness: Harness, work: str) -> None:
    draws, landed = random.Random(f"suite {work}"), 0  # noqa: S311
    while not landed:
        moments = kills.random_kills(draws, 2, harness.straight(work).seconds)
        number, found = harness.chain(work, *moments)
        assert found == [], moments
        landed += number


@pytest.mark.parametrize(
    ("work", "name", "which"),
    [
        ("run", "half of write", 1),  # of run.json; the pid in the lock is the first
        ("run", "replace tasks.jsonl", 1),  # the second task is learnt, but has no line yet
        ("run", "replace state.safetensors", 1),  # it has one, and is not in the state yet
        ("run", "replace state.safetensors", -1),  # the state that is kept
        ("run", "unlink state.safetensors", 0),
        ("run", "unlink lock", 0),
        ("learner", "unlink update.json", 1),  # --again is done
        ("learner", "unlink change.json", 0),
    ],
)
def test_killed_where_it_changes_a_file(harness: Harness, work: str, name: str, which: int) -> None:
    assert harness.chain(work, harness.point(work, name, which)) == (1, [])


def test_the_harness_sees_what_is_lost(harness: Harness) -> None:
    # A mid-phase snapshot is written; whoever goes on from it forgets the momenta.
    kill = harness.point("run", "replace 0000.safetensors", 1)
    killed, found = harness.chain("forgetful_run", kill, judge="run")
    assert killed == 1
    assert any(line.startswith("/state") for line in found)
