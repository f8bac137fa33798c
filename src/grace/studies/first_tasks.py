"""Compare the networks of first tasks that runs took from each other with those they trained."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.runs import RunRecord


@final
@dataclass(frozen=True)
class FirstNetwork:
    """The network of a first task that runs share, as a record tells of it.

    Args:
        first_task: fingerprint of the first task.
        sha256: hash of the network.
        is_taken: the run took it over; ``False``: it trained it.
    """

    first_task: str
    sha256: str
    is_taken: bool


def first_network(record: RunRecord) -> FirstNetwork | None:
    """Return the network of a run's first task; ``None``: it was not shared."""
    first_task = record.info.fingerprints.get("first_task", "")
    for phase in record.tasks[0].phases if record.tasks else ():
        if phase.sha256:
            return FirstNetwork(first_task, phase.sha256, phase.is_shared)
    return None


def foreign_first_tasks(records: Sequence[RunRecord]) -> Mapping[Path, str]:
    """Find the runs that took a network over which no run with the same first task trained.

    Every run records the hash of the network that it trained for others, or took. Where the run
    that trained it is no longer among the records, nothing can be said.

    Args:
        records: all finished runs of a comparison.

    Returns:
        What is wrong, by the run's directory.
    """
    networks = {record.directory: first_network(record) for record in records}
    trained = defaultdict[str, set[str]](set)
    for one in networks.values():
        if one is not None and not one.is_taken:
            trained[one.first_task].add(one.sha256)
    return {
        place: f"its first task was taken over (SHA-256 {one.sha256[:16]}…), but no run here "
        f"trained that network: remove {place} and first-tasks/ to run it again"
        for place, one in networks.items()
        if one is not None
        and one.is_taken
        and trained[one.first_task]
        and one.sha256 not in trained[one.first_task]
    }
