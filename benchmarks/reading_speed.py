"""Compare how fast two versions of grace read images, configs, records and learners.

    python benchmarks/reading_speed.py --before 2570f40 --out benchmarks/results

Two processes, one of each version, read the same files in turn: 1,000 JPEG photographs and 1,000
PNG images, a config, a record of ten tasks, a learner. What counts is processor time, as other
programs may be at work. Of each measure, the median over the rounds of "now / before" is given.
Ends with status 1 if one is above 1.03.
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from grace.runs import collect_hardware, collect_versions, commit

ROOT = Path(__file__).parents[1]
MOST = 1.03
WORKER = """
import sys, time, warnings
from pathlib import Path
tree, place = map(Path, sys.argv[1:])
sys.path[:0] = [str(tree / "src"), str(tree / "tests")]
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import grace
assert Path(grace.__file__).is_relative_to(tree), grace.__file__
from grace.settings.experiment import MemorySettings
from grace.settings.load import load_experiment
from grace.settings.methods import ReplaySettings
from grace.data.reading import decode_all
from grace.learner.learner import Learner
from grace.runs import read_record
from support import tiny_streams

def make_record():
    from support.synthetic_records import record_maker
    record_maker(place)(task_sizes=[10] * 10).directory.rename(place / "record")

def make_learner():
    method = ReplaySettings(base=tiny_streams.recipe(), update=tiny_streams.recipe())
    memory = MemorySettings(size=400, validation=10)
    chosen = tiny_streams.settings(method, memory=memory)
    made = Learner.create(chosen, shape=(3, 8, 8), directory=place / "learner")
    for counts in ({0: 100, 1: 100}, {2: 100}, {3: 100}):
        data = tiny_streams.labelled(counts)
        made.update(data.images, tiny_streams.class_names(data))

jpegs, pngs = sorted(place.glob("*.jpg")), sorted(place.glob("*.png"))
measures = {
    "1,000 JPEG photographs of 512×384": lambda: decode_all(jpegs, 3, 64),
    "1,000 PNG images of 64×64": lambda: decode_all(pngs, 3, 64),
    "a config, 20 times": lambda: [load_experiment("digits") for _ in range(20)],
    "a record of ten tasks, 100 times": lambda: [read_record(place / "record") for _ in range(100)],
    "a learner, 10 times": lambda: [Learner.load(place / "learner") for _ in range(10)],
}
tasks = {**measures, "make_record": make_record, "make_learner": make_learner}
for line in sys.stdin:
    start = time.process_time()
    tasks[line.strip()]()
    print(time.process_time() - start, flush=True)
"""
MEASURES = [line.split('"')[1] for line in WORKER.splitlines() if '": lambda' in line]


def make_images(place: Path) -> None:
    """Write smooth images, as photographs are, from seeds."""
    for number in range(1000):
        draw = np.random.default_rng(number)
        levels = draw.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        smooth = Image.fromarray(levels).resize((512, 384), Image.Resampling.BICUBIC)
        smooth.save(place / f"{number:04}.jpg", quality=90)
        smooth.crop((0, 0, 64, 64)).save(place / f"{number:04}.png")


def unpack(commit_id: str, place: Path) -> None:
    """Write the files of a commit to a folder."""
    command = ["git", "-C", str(ROOT), "archive", commit_id, "src", "tests"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(place, filter="data")


def worker(tree: Path, place: Path) -> "subprocess.Popen[str]":
    """Start a process that imports grace from a tree."""
    command = [sys.executable, "-c", WORKER, str(tree), str(place)]
    return subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1)


def ask(process: "subprocess.Popen[str]", what: str) -> str:
    """Let a process do something; return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{what}\n")
    return process.stdout.readline().strip()


def compare(
    before: str, rounds: int, folder: Path, measures: list[str]
) -> dict[str, dict[str, float]]:
    """Measure a commit and this tree in turn; return seconds and ratio by measure."""
    old, place = folder / "before", folder / "files"
    old.mkdir()
    place.mkdir()
    unpack(before, old)
    make_images(place)
    both = [worker(old, place), worker(ROOT, place)]
    ask(both[0], "make_learner")  # The later version reads what the earlier one wrote.
    ask(both[1], "make_record")
    results = {}
    for name in measures:
        for process in both:
            ask(process, name)  # What is imported and cached once is no difference.
        pairs = []
        for number in range(rounds):
            order = both if number % 2 else both[::-1]
            times = [float(ask(process, name)) for process in order]
            pairs.append(tuple(times if number % 2 else times[::-1]))
        results[name] = {
            "before": min(own for own, _ in pairs),
            "now": min(own for _, own in pairs),
            "ratio": median(now / earlier for earlier, now in pairs),
        }
        print(f"{name}: {results[name]}", file=sys.stderr)
    for process in both:
        process.communicate()
    return results


def main() -> int:
    """Compare, and print or write the result."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--before", default="2570f40", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each measure")
    parser.add_argument("--measures", nargs="*", choices=MEASURES, help="only some of them")
    parser.add_argument("--out", type=Path, help="folder for the result (Markdown)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = compare(args.before, args.rounds, Path(folder), args.measures or MEASURES)
    rows = [
        f"| {name} | {own['before']:.2f} | {own['now']:.2f} | {own['ratio']:.3f} |"
        for name, own in results.items()
    ]
    hardware, now = collect_hardware("cpu", 1), datetime.now(UTC)
    text = f"""# Reading, before the work on files from strangers and now, {now:%Y-%m-%d}, CPU

`python benchmarks/reading_speed.py --before {args.before} --rounds {args.rounds}`

Commit {commit()}; torch {collect_versions()["torch"]}; {hardware["cores"]} cores of
{hardware["cpu"]}. Seconds of processor time: the least of {args.rounds} rounds, in which both
versions read the same files in turn, and the median of each round's "now / before".

| | before | now | now / before |
|---|---:|---:|---:|
{chr(10).join(rows)}
"""
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"reading-speed-{now:%Y%m%d}-cpu.md").write_text(text)
        facts = {"before": args.before, "commit": commit(), "results": results}
        document = json.dumps({**facts, "date": now.isoformat()}, indent=1)
        (args.out / f"reading-speed-{now:%Y%m%d}-cpu.json").write_text(document + "\n")
    return int(any(own["ratio"] > MOST for own in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
