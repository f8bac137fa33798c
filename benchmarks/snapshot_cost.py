"""Measure what it costs a run to be ready for being killed.

The share of a run's time that is spent in writing and finding snapshots, sweeps' results, versions
and the journal, measured inside the run itself: what else the machine does slows both alike, where
the difference of two whole runs would drown in it.

    python benchmarks/snapshot_cost.py digits data.image_size=32 backbone.name=resnet32 \
        --out benchmarks/results
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import grace.runs.run
from grace.learner import saving
from grace.learner.journal import Journal
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.learner.versions import Versions
from grace.runs import RunRecord, SilentRun, collect_hardware, collect_versions, commit
from grace.runs.run import run_experiment
from grace.settings.load import load_experiment

PARTS: dict[str, list[tuple[Any, str]]] = {
    "snapshots of phases": [(Journal, "offer_phase"), (Journal, "saved_phase")],
    "results of sweeps": [(Journal, "_write"), (Journal, "_read")],
    "versions": [
        *((Versions, name) for name in ("add", "_done_already", "_refuse_stale")),
        (Learner, "live_in"),
        *((ModelStore, name) for name in ("remove_unused", "prune")),
        (saving, "describe"),
    ],
    "begin and end of updates": [(ModelStore, "begin"), (ModelStore, "discard")],
    "end of the run": [
        (grace.runs.run, "drop_checkpoint"),
        (grace.runs.run, "remove_leftovers"),
    ],
}
"""All functions of which a run without a checkpoint would call none."""


@dataclass
class Stopwatch:
    """Seconds inside some functions, those of a call within another counted once."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _inside: bool = False

    def watch(self, owner: Any, name: str, part: str) -> None:  # noqa: ANN401
        """Time all calls of a function of a class or module from now on."""
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if self._inside:
                return original(*args, **kwargs)
            self._inside, started = True, time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False
                took = time.perf_counter() - started
                self.seconds[part] = self.seconds.get(part, 0.0) + took
                self.calls[part] = self.calls.get(part, 0) + 1

        setattr(owner, name, timed)


def measure(experiment: str, overrides: list[str]) -> tuple[RunRecord, float, Stopwatch]:
    """Run an experiment; return its record, its seconds and those of being ready."""
    settings = load_experiment(experiment, overrides)
    if settings.engine.threads:
        torch.set_num_threads(settings.engine.threads)
    watch = Stopwatch()
    for part, functions in PARTS.items():
        for owner, name in functions:
            watch.watch(owner, name, part)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        record = run_experiment(settings, Path(folder) / "run", SilentRun())
        seconds = time.perf_counter() - started
    return record, seconds, watch


def table(record: RunRecord, seconds: float, watch: Stopwatch) -> str:
    """Lay the shares out as Markdown."""
    inside = sum(watch.seconds.values())
    phases = [phase for task in record.tasks for phase in task.phases if phase.epochs]
    longest = max(phase.seconds for phase in phases)
    rows = [
        f"| {part} | {watch.calls.get(part, 0)} | {own:.2f} | {100 * own / seconds:.2f} % |"
        for part in PARTS
        for own in [watch.seconds.get(part, 0.0)]
    ]
    return "\n".join(
        [
            f"## {100 * inside / seconds:.2f} % of {seconds:.0f} s",
            "",
            f"{len(record.tasks)} tasks, {len(phases)} phases of up to {longest:.0f} s, "
            f"{record.tasks[-1].backbones} backbones at the end, "
            f"{record.tasks[-1].bytes.weights / 1e6:.1f} MB of weights.",
            "",
            "| part | calls | s | share |",
            "|---|---:|---:|---:|",
            *rows,
            f"| together | | {inside:.2f} | {100 * inside / seconds:.2f} % |",
            "",
        ]
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("experiment", nargs="?", default="digits", help="name or YAML file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="over its settings")
    parser.add_argument("--out", type=Path, help="folder for the result (JSON and Markdown)")
    return parser.parse_args()


def main() -> None:
    """Measure, and print or write the result."""
    args = parse()
    date = datetime.now(UTC)
    record, seconds, watch = measure(args.experiment, args.overrides)
    text = table(record, seconds, watch)
    print(text)
    if not args.out:
        return
    about: dict[str, Any] = {
        "date": date.isoformat(timespec="seconds"),
        "commit": commit(),
        "command": " ".join(
            ["python benchmarks/snapshot_cost.py", args.experiment, *args.overrides]
        ),
        "hardware": collect_hardware("cpu", torch.get_num_threads()),
        "versions": collect_versions(),
    }
    results = {"seconds": seconds, "inside": watch.seconds, "calls": watch.calls}
    name = f"snapshot-cost-{date:%Y%m%d}-cpu"
    args.out.mkdir(parents=True, exist_ok=True)
    document = json.dumps({**about, "results": results}, indent=1)
    (args.out / f"{name}.json").write_text(document + "\n")
    machine = ", ".join(f"{key} {value}" for key, value in about["hardware"].items() if value)
    (args.out / f"{name}.md").write_text(
        f"# What it costs to go on after being killed, {date:%Y-%m-%d}, cpu\n\n"
        f"`{about['command']}`\n\n"
        f"Commit {about['commit']}; torch {about['versions']['torch']}; {machine}.\n\n{text}"
    )


if __name__ == "__main__":
    main()
