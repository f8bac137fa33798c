"""Read thousands of spoilt configs, records, images, folders and archives; count what goes wrong.

    python benchmarks/attacks.py --out benchmarks/results

Right is a result or a ``GraceError``. Wrong is any other error, more than 20 seconds of processor
time for one mutant, a process of more than 1.5 GB, a file changed outside. Exits with 1 then.
Learners have a script of their own: ``benchmarks/hostile_files.py``.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from grace.base.errors import GraceError
from grace.base.words import printable
from grace.runs import commit

ROOT = Path(__file__).parents[1]
BATCH = 5_000


def spoilt(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with some flipped, cut off, doubled or exchanged."""
    found = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        place = draw.randrange(max(len(found), 1))
        kind = draw.randrange(4)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[place : place + draw.choice([1, 4, len(found)])]
        elif kind == 2:
            found[place:place] = found[: draw.randrange(1, 64)]
        else:
            found[place:place] = draw.choice(
                [b"\0", b"\xff", b"9" * 400, b"[" * 200, b"&a *a", b"\n"]
            )
    return bytes(found)


def kinds(folder: Path) -> dict[str, Callable[[random.Random], object]]:
    """Return by kind what spoils one thing below ``folder`` and reads it."""
    from grace.data import cifar
    from grace.data.decoding import read_pixels
    from grace.data.folder_tree import scan
    from grace.runs import read_record
    from grace.settings.load import dump_settings, load_experiment

    sys.path.insert(0, str(ROOT / "tests"))
    odd = import_module("support.odd_images")
    odd_archives = import_module("support.odd_archives")
    record_maker = import_module("support.synthetic_records").record_maker

    config = dump_settings(load_experiment("digits")).encode()
    record = record_maker(folder)()
    pieces = {name: (record.directory / name).read_bytes() for name in ("run.json", "tasks.jsonl")}
    formats = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
    images = [odd.encoded(odd.noise(n, (20, 16)), kind) for n, kind in enumerate(formats)]

    def configs(draw: random.Random) -> object:
        path = folder / "a.yaml"
        path.write_bytes(spoilt(config, draw))
        return load_experiment(str(path))

    def records(draw: random.Random) -> object:
        name = draw.choice(sorted(pieces))
        (record.directory / name).write_bytes(spoilt(pieces[name], draw))
        try:
            return read_record(record.directory)
        finally:
            (record.directory / name).write_bytes(pieces[name])

    def pictures(draw: random.Random) -> object:
        path = folder / "a.png"
        path.write_bytes(spoilt(draw.choice(images), draw))
        return read_pixels(path, draw.choice([1, 3]), draw.choice([None, 8]))

    def folders(draw: random.Random) -> object:
        with tempfile.TemporaryDirectory(dir=folder) as root:
            for _ in range(4):
                letters = draw.choices("a\udcff\u202e\u200d\n .é\x1b", k=draw.randrange(1, 9))
                path = Path(root, "".join(letters) + "x", "b.png")
                path.parent.mkdir(exist_ok=True)
                if draw.random() < 0.3:
                    path.unlink(missing_ok=True)
                    path.symlink_to(draw.choice(["b.png", "..", "/dev/zero", "none"]))
                else:
                    path.unlink(missing_ok=True)
                    path.write_bytes(spoilt(images[0], draw))
            found = scan(Path(root))
            for file in found.files(is_test=False):
                with suppress(GraceError):
                    read_pixels(file.path, 3, 8)
            return [printable(name).encode() for name in found.class_names]

    def archives(draw: random.Random) -> object:
        path = folder / "a.tar.gz"
        path.write_bytes(odd_archives.archive(draw))
        with tempfile.TemporaryDirectory(dir=folder) as place:
            there = Path(place, "there")
            if draw.random() < 0.1:
                odd_archives.occupy(there, draw)
            cifar._extract(path, there, ["x", "y"])
            # What is unpacked are regular files, of the two names alone.
            found = sorted(there.iterdir())
            assert [own.name for own in found] == ["x", "y"], found
            assert all(own.is_file() and not own.is_symlink() for own in found), found
            return [own.read_bytes() for own in found]

    every = (configs, records, pictures, folders, archives)
    return {own.__name__: own for own in every}


def examine(first: int, count: int, seed: int) -> dict[str, Any]:
    """Carry out some attacks in this process; return counts and failures."""
    counts: dict[str, Counter[str]] = {}
    failures: list[str] = []
    slowest = 0.0
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        outside, folder = Path(name, "outside"), Path(name, "inside")
        outside.write_text("precious")
        folder.mkdir()
        attacks = list(kinds(folder).items())
        for number in range(first, first + count):
            kind, attack = attacks[number % len(attacks)]
            draw = random.Random(f"{seed} {number}")  # noqa: S311 - not a secret
            started, outcome = time.process_time(), "read"
            try:
                attack(draw)
            except GraceError:
                outcome = "refused"
            except Exception as error:  # This is what is searched.
                outcome = "failed"
                failures.append(f"{kind} {number}: {error!r}"[:300])
            seconds = time.process_time() - started
            slowest = max(slowest, seconds)
            if seconds > 20:
                failures.append(f"{kind} {number}: {seconds:.0f} s")
            counts.setdefault(kind, Counter())[outcome] += 1
        if outside.read_text() != "precious" or len(list(Path(name).iterdir())) != 2:
            failures.append("a file outside was changed")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if peak > 1500:
        failures.append(f"{peak} MB of memory")
    return {"counts": counts, "failures": failures, "slowest": slowest, "peak": peak}


def page(command: str, reports: list[dict[str, Any]], seconds: float) -> str:
    """Write the reports for people."""
    counts: dict[str, Counter[str]] = {}
    for report in reports:
        for kind, found in report["counts"].items():
            counts.setdefault(kind, Counter()).update(found)
    rows = [
        f"| {kind} | {own['refused']} | {own['read']} | {own['failed']} |"
        for kind, own in counts.items()
    ]
    total = sum(sum(own.values()) for own in counts.values())
    failures = [failure for report in reports for failure in report["failures"]]
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    return f"""# Spoilt configs, records, images, folders and archives, {day}, CPU

`{command}`

Commit {commit()}. {total:,} mutants in {seconds:.0f} s of processor time; the slowest took
{max(report["slowest"] for report in reports):.1f} s, the largest process
{max(report["peak"] for report in reports)} MB. Failures: {len(failures)}.

| kind | refused | read | failed |
|---|---:|---:|---:|
{chr(10).join(rows)}
""" + "".join(f"\n- {failure}" for failure in failures)


def main() -> None:
    """Carry out all attacks, write the page, and tell by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, help="one batch in this process, as JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    if args.first is not None:
        print(json.dumps(examine(args.first, args.count, args.seed)))
        return
    reports = []
    for first in range(0, args.count, BATCH):
        numbers = ["--first", str(first), "--count", str(min(BATCH, args.count - first))]
        done = subprocess.run(
            [sys.executable, __file__, *numbers, "--seed", str(args.seed)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        reports.append(json.loads(done.stdout.splitlines()[-1]))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = f"python benchmarks/attacks.py --count {args.count} --seed {args.seed}"
    text = page(command, reports, used.ru_utime + used.ru_stime)
    (args.out / f"attacks-{datetime.now(UTC):%Y%m%d}-cpu.md").write_text(text)
    print(text)
    sys.exit(1 if any(report["failures"] for report in reports) else 0)


if __name__ == "__main__":
    main()
