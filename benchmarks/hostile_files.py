"""Examine thousands of damaged and forged learners, and record what became of them.

    python benchmarks/hostile_files.py --out benchmarks/results

Each mutant is one small saved learner, spoilt in one way that a seed draws (``support/hostile*.py``
of the tests): bytes of any file, documents as trees, every field of their model, objects whose
hashes are made right again, links, pipes and folders in place of files, unfinished updates. It is
described, loaded and asked about two images; where the unfinished update is spoilt, that is asked
for, too. Right is one line that says what is wrong and where, or a sound answer. Wrong is any other
error, a warning, ten seconds of computing, 500 MB, a file touched elsewhere, code that is run.
Exits with 1 then.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from grace.runs.provenance import collect_hardware, collect_versions, commit

ROOT = Path(__file__).parents[1]


def examine(first: int, count: int, seed: int) -> dict[str, Any]:
    """Examine some mutants in a process of their own; return its report."""
    with tempfile.TemporaryDirectory() as folder:
        work, out = Path(folder) / "work", Path(folder) / "report.json"
        work.mkdir()
        numbers = ["--first", str(first), "--count", str(count), "--seed", str(seed)]
        program = [sys.executable, "-m", "support.hostile", str(work)]
        done = subprocess.run(
            [*program, *numbers, "--out", str(out)], cwd=ROOT / "tests", check=False
        )
        assert out.exists(), f"mutants from {first} on ended the process: {done.returncode}"
        report: dict[str, Any] = json.loads(out.read_text())
    return report


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Add reports up."""
    counts: dict[str, Counter[str]] = {}
    for report in reports:
        for kind, found in report["counts"].items():
            counts.setdefault(kind, Counter()).update(found)
    return {
        "mutants": sum(report["mutants"] for report in reports),
        "counts": {kind: dict(counts[kind]) for kind in sorted(counts)},
        "failures": [failure for report in reports for failure in report["failures"]],
        "slowest": max((r["slowest"] for r in reports), key=lambda slowest: slowest["seconds"]),
        "seconds": round(sum(report["seconds"] for report in reports), 1),
    }


def page(record: dict[str, Any]) -> str:
    """Write a record for people."""
    found = record["results"]
    outcomes = ("refused", "answered", "failed")
    rows = [
        [kind, *(str(counts.get(outcome, 0)) for outcome in outcomes)]
        for kind, counts in found["counts"].items()
    ]
    sums = [sum(int(row[column]) for row in rows) for column in (1, 2, 3)]
    rows.append(["all", *map(str, sums)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    hardware, slowest = record["hardware"], found["slowest"]
    return f"""# Damaged and forged learners, {record["date"][:10]}, CPU

`{record["command"]}`

{hardware["cores"]} cores of {hardware["cpu"]}, one thread; torch {record["versions"]["torch"]};
commit {record["commit"]}. {found["mutants"]:,} mutants in {found["seconds"] / 60:.0f} minutes, the
slowest ({slowest["mutant"]}) {slowest["seconds"]:.1f} s.

Refused: one line that says what is wrong and where. Answered: what is spoilt does not matter, or is
as good as what it was, and the answers are sound. Failed: anything else.

| kind | refused | answered | failed |
|---|---:|---:|---:|
{table}
"""


def main() -> None:
    """Examine all mutants, write the record, and tell by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    # A process for each 2,500: what a mutant leaves behind does not add up.
    starts = range(0, args.count, 2_500)
    reports = [examine(first, min(2_500, args.count - first), args.seed) for first in starts]
    now = datetime.now(UTC)
    record: dict[str, Any] = {
        "date": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "command": f"python benchmarks/hostile_files.py --count {args.count} --seed {args.seed}",
        "hardware": collect_hardware("cpu", 1),
        "versions": collect_versions(),
        "results": merged(reports),
    }
    name = args.out / f"hostile-{now:%Y%m%d}-cpu"
    name.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    name.with_suffix(".md").write_text(page(record))
    print(page(record))
    sys.exit(1 if record["results"]["failures"] else 0)


if __name__ == "__main__":
    main()
