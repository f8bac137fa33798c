"""Kill runs and learners at every point at which they change a file, and at random times.

Each work of ``tests/support/killed_works.py`` is done once by one process, and then again and again
by processes that are killed by SIGKILL; further ones finish it. What comes out must not differ:
weights, exemplars and held-out images (by SHA-256), metrics, verdicts, predictions, and which files
are there.

    python benchmarks/kill_harness.py --out benchmarks/results

Works are runs, a learner's life, and every verb that changes files: forget, prune, rollback,
set, discard, export, study. ``--works`` chooses some, ``--every`` takes one of so many
points.

Ends with status 1 if anything differs. In the suite, ``tests/test_nothing_lost.py`` does a part.
"""

import argparse
import importlib
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grace.runs.provenance import collect_hardware, collect_versions, commit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
kills: Any = importlib.import_module("support.kills")

WORKS = {
    "run": "a run of GRACE: base, grow, compress",
    "learner": "a learner's six changes under a ceiling",
    "forget": "grace forget",
    "prune": "grace prune",
    "rollback": "grace rollback",
    "set_memory": "grace set",
    "discard": "grace learn --discard",
    "export": "grace export",
    "study": "grace study",
}
EVERY = 3
"""One of so many chains with a kill at a point has a second one, while a process recovers."""


@dataclass
class LossMeter:
    """What one work went through."""

    points: Counter[str] = field(default_factory=Counter)
    """Points by the call that they stand before."""
    seconds: float = 0.0
    """Of the process that was not killed."""
    point_kills: int = 0
    """At points: one for each, and those of processes that recovered."""
    time_kills: int = 0
    chains: int = 0
    differences: list[str] = field(default_factory=list)


def examine(work: str, number: int, jobs: int, root: Path, every: int = 1) -> LossMeter:
    """Kill one work at its points, and at random times.

    Args:
        work: name of the work.
        number: kills at random times.
        jobs: so many processes work at a time.
        root: folder for the works.
        every: one of so many points is taken.
    """
    straight = kills.straight(work, root / "straight")
    tally = LossMeter(Counter(_call(name) for name in straight.points), straight.seconds)
    draws = random.Random(work)  # noqa: S311

    def carry_out(chain: Sequence[Any]) -> tuple[int, list[str]]:
        folder = root / secrets.token_hex(8)
        try:
            facts, num_killed = kills.chain(work, folder, chain)
            return num_killed, kills.differences(straight.facts, facts)
        except AssertionError as error:
            return 0, [str(error)]
        finally:
            shutil.rmtree(folder)

    with ThreadPoolExecutor(jobs) as pool:
        at_points = list(_at_every_point(straight.points, draws))[::every]
        for chain, (killed, found) in zip(at_points, pool.map(carry_out, at_points), strict=True):
            _note(tally, chain, found)
            tally.point_kills += killed
        while tally.time_kills < number:
            batch = [
                kills.random_kills(draws, draws.randint(1, 3), straight.seconds)
                for _ in range(jobs)
            ]
            for chain, (killed, found) in zip(batch, pool.map(carry_out, batch), strict=True):
                _note(tally, chain, found)
                tally.time_kills += killed
    return tally


def _at_every_point(names: Sequence[str], draws: random.Random) -> Iterator[list[Any]]:
    for point, name in enumerate(names, start=1):
        if name.startswith("fsync") and point < len(names):
            continue  # It changes nothing: the next point is the same moment.
        # Where a process recovers, it does so at its first points.
        again = [kills.Kill(point=draws.randint(1, 30))] if point % EVERY == 0 else []
        yield [kills.Kill(point=point), *again]


def _note(tally: LossMeter, chain: Sequence[Any], found: Sequence[str]) -> None:
    tally.chains += 1
    tally.differences += [f"{chain}: {line}" for line in found]
    for line in found:
        print(f"{chain}: {line}", file=sys.stderr)
    if tally.chains % 25 == 0:
        print(f"{tally.chains} chains, {len(tally.differences)} differences", file=sys.stderr)


def _call(name: str) -> str:
    return "half of write" if name.startswith("half") else name.split()[0]


def table(tallies: dict[str, LossMeter], seconds: float) -> str:
    """Lay the counts out as Markdown."""
    lines = [
        "| | " + " | ".join(WORKS[work] for work in tallies) + " |",
        "|---|" + "---:|" * len(tallies),
    ]
    rows = {
        "points at which files are changed": [sum(t.points.values()) for t in tallies.values()],
        "kills at points": [t.point_kills for t in tallies.values()],
        "kills at random times": [t.time_kills for t in tallies.values()],
        "times the work was finished": [t.chains for t in tallies.values()],
        "**differences**": [len(t.differences) for t in tallies.values()],
    }
    lines += [f"| {name} | " + " | ".join(map(str, row)) + " |" for name, row in rows.items()]
    calls = sum((tally.points for tally in tallies.values()), Counter[str]())
    lines += [
        "",
        "Points by call: " + ", ".join(f"{call} {n}" for call, n in calls.most_common()) + ".",
        f"All of it took {seconds / 60:.0f} minutes.",
    ]
    lines += [f"\n- {line}" for tally in tallies.values() for line in tally.differences]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """Read the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--out", type=Path, help="folder for the result (JSON and Markdown)")
    parser.add_argument("--random", type=int, default=60, help="random kills of each work")
    parser.add_argument("--works", default=",".join(WORKS), help="works, comma-separated")
    parser.add_argument("--every", type=int, default=1, help="take one of so many points")
    parser.add_argument("--jobs", type=int, default=1, help="processes at work at a time")
    return parser.parse_args()


def main() -> int:
    """Examine all works, and print or write the result."""
    args = parse()
    started, clock = datetime.now(UTC), time.monotonic()
    about = {
        "date": started.isoformat(timespec="seconds"),
        "commit": commit(),
        "command": f"python benchmarks/kill_harness.py --works {args.works} --every {args.every} "
        f"--random {args.random} --jobs {args.jobs}",
        "hardware": collect_hardware("cpu", 1),
        "versions": collect_versions(),
    }
    with tempfile.TemporaryDirectory() as folder:
        root, tallies = Path(folder), {}
        for work in args.works.split(","):
            (root / work).mkdir()
            tallies[work] = examine(work, args.random, args.jobs, root / work, args.every)
            seconds = time.monotonic() - clock
            text = table(tallies, seconds)
            if args.out:  # After each work: it takes an hour.
                write(args.out, about, tallies, seconds, text)
    print(text)
    return int(any(tally.differences for tally in tallies.values()))


def write(
    folder: Path, about: dict[str, Any], tallies: dict[str, LossMeter], seconds: float, text: str
) -> None:
    """Write the result with all that is needed to repeat it."""
    name = f"kills-{datetime.fromisoformat(about['date']):%Y%m%d}-cpu"
    folder.mkdir(parents=True, exist_ok=True)
    results = {work: vars(tally) for work, tally in tallies.items()}
    document = json.dumps({**about, "seconds": round(seconds), "results": results}, indent=1)
    (folder / f"{name}.json").write_text(document + "\n")
    machine = ", ".join(f"{key} {value}" for key, value in about["hardware"].items() if value)
    (folder / f"{name}.md").write_text(
        f"# Killed at every point, {about['date'][:10]}, cpu\n\n`{about['command']}`\n\n"
        f"Commit {about['commit']}; torch {about['versions']['torch']}; {machine}.\n\n"
        "Compared with one process that nobody killed, bit for bit: weights, exemplars, held-out\n"
        "images, metrics, verdicts, predictions, and that nothing else lies about.\n\n"
        f"{text}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
