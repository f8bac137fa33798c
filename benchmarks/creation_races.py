"""Let two processes create one learner at the same moment, again and again.

Each has settings of its own, creates the learner, and teaches it. Exactly one may succeed, and what
lies there afterwards must be its learner, whole.

    python benchmarks/creation_races.py --trials 200 --out benchmarks/results

Ends with status 1 if any trial ends otherwise. In the suite,
``tests/home/test_beside_others.py`` does a part.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.runs import collect_hardware, collect_versions, commit

RACER = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
import grace.methods.module_factory
from grace.settings.methods import ReplaySettings
from grace.learner.learner import Learner
from grace.base.errors import GraceError
from support import tiny_streams as tiny
torch.set_num_threads(1)
grace.methods.module_factory.build_backbone = tiny._resnet8
method = ReplaySettings(base=tiny.recipe(), update=tiny.recipe())
settings = tiny.settings(method, description=sys.argv[1])
data = tiny.labelled({0: 8, 1: 8})
print("ready", flush=True)
for line in sys.stdin:
    try:
        made = Learner.create(settings, shape=(3, 8, 8), directory=line.strip())
        made.update(data.images, tiny.class_names(data))
        print("succeeded", flush=True)
    except GraceError as error:
        print("refused", error, flush=True)
    except OSError as error:
        print("failed", repr(error), flush=True)
"""
NAMES = ("one", "two")


def trial(path: Path, racers: list["subprocess.Popen[str]"]) -> str:
    """Let both create a learner at ``path``; return how it ended."""
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(f"{path}\n")
    told = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
    won = [name for name, line in zip(NAMES, told, strict=True) if line == "succeeded"]
    if len(won) != 1:
        return f"{len(won)} succeeded: {told}"
    store = ModelStore.open(path)
    owners = {store.creation.settings.description}
    owners |= {document.settings.description for document in store.documents()}
    if owners != set(won) or Learner.load(path).version != 1:
        return f"what lies there is of {sorted(owners)}, {won[0]} succeeded"
    return "one succeeded"


def write(facts: dict[str, Any], folder: Path) -> None:
    """Write the result, for programs and for people."""
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"creation-races-{datetime.fromisoformat(facts['date']):%Y%m%d}-cpu"
    name.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    rows = [f"| {end} | {number} |" for end, number in facts["ends"].items()]
    hardware = facts["hardware"]
    name.with_suffix(".md").write_text(
        f"# Two processes create one learner, {facts['date'][:10]}, CPU\n\n`{facts['command']}`\n\n"
        f"Commit {facts['commit']}; torch {facts['versions']['torch']}; "
        f"{hardware['cores']} cores of\n"
        f"{hardware['cpu']}. How {facts['trials']} trials ended:\n\n| | trials |\n|---|---:|\n"
        + "\n".join(rows)
        + "\n"
    )


def main() -> int:
    """Run all trials, and print or write the result."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--trials", type=int, default=200, help="number of trials")
    parser.add_argument("--out", type=Path, help="folder for the result (JSON)")
    args = parser.parse_args()
    tests = str(Path(__file__).parents[1] / "tests")
    command = [sys.executable, "-c", RACER]
    racers = [
        subprocess.Popen([*command, name, tests], stdin=-1, stdout=-1, text=True, bufsize=1)
        for name in NAMES
    ]
    sys.path.insert(0, tests)
    factory: Any = importlib.import_module("grace.methods.module_factory")
    factory.build_backbone = importlib.import_module("support.tiny_streams")._resnet8
    with tempfile.TemporaryDirectory() as root:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        ends = Counter(trial(Path(root, str(n)), racers) for n in range(args.trials))
    for racer in racers:
        racer.communicate()
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": f"python benchmarks/creation_races.py --trials {args.trials}",
        "hardware": collect_hardware("cpu", 1),
        "versions": collect_versions(),
        "trials": args.trials,
        "ends": dict(ends),
    }
    print(json.dumps(facts, indent=1))
    if args.out:
        write(facts, args.out)
    return int(ends["one succeeded"] != args.trials)


if __name__ == "__main__":
    raise SystemExit(main())
