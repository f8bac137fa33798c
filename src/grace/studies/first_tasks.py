"""Compare the networks of first tasks that runs took from each other with those they trained."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from grace.record import RunRecord


def foreign_first_tasks(records: Sequence[RunRecord]) -> Mapping[Path, str]:
    """Find the runs that took a network over which no run with the same first task trained.

    Every run records the hash of the network that it trained for others, or took. Where the run
    that trained it is no longer among the records, nothing can be said.

    Args:
        records: all finished runs of a comparison.

    Returns:
        What is wrong, by the run's directory.
    """
    trained = defaultdict[str, set[str]](set)
    taken: dict[Path, tuple[str, str]] = {}
    for record in records:
        first = record.info.fingerprints.get("first_task", "")
        for phase in record.tasks[0].phases if record.tasks else ():
            if phase.sha256 and phase.is_shared:
                taken[record.directory] = (first, phase.sha256)
            elif phase.sha256:
                trained[first].add(phase.sha256)
    return {
        place: f"its first task was taken over (SHA-256 {sha256[:16]}…), but no run here trained "
        f"that network: remove {place} and first-tasks/ to run it again"
        for place, (first, sha256) in taken.items()
        if trained[first] and sha256 not in trained[first]
    }
