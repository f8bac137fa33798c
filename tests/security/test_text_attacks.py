"""Seeded attacks by text: configs, records, settings of a command line, terminals and pages.

Each attack ends in a result or in one ``GraceError`` (or an ``OSError`` that names a file): no
other exception, no wait, no memory without bound.
"""

import json
import os
import random
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grace.base.errors import GraceError
from grace.cli import console
from grace.runs.record import read_record, read_records
from grace.settings.load import load_experiment
from grace.studies.report import write_report
from grace.studies.results import compared
from grace.studies.table import numbers_csv, study_tables
from support.synthetic_records import MakeRecord

SECONDS = 15.0
"""Most processor time of one attack; measured ones take a fraction of it on a slow machine."""
MEGABYTES = 1000
SEED = 12

ODD_TEXTS = (
    "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "a\nerror: forged", "\x9b31m", "\u2066x\u2069",
    "<script>alert(1)</script>", "=HYPERLINK(1)", "| a | b |", "[1cm]", "*", "\\input{x}",
    "```\n# x", "-x", "@x", "+1", "%00", "{{x}}", "[red]x[/red]", "..", "/etc", "\u200b", "\ufeff",
    "e\u0301" * 99,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 10**19, -(10**19), 10**30, 1e308, -1e308, 1e-320, 1.5, "", "x",
    *ODD_TEXTS, [], [[]], [1], {}, {"a": 1}, {"": []}, "9" * 400, [[1], [1, 2]], [None],
    float("inf"), float("nan"), "2026-01-01", "0000-00-00T00:00:00", [0] * 50, {"name": "grace"},
)  # fmt: skip


def attack(do: Callable[[], object]) -> str:
    """Carry out one attack; return its refusal, empty if there was a result."""
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            do()
        except GraceError as error:
            said = str(error)
        except OSError as error:
            said = f"{error.filename}: {error.strerror}"
    assert time.process_time() - started < SECONDS
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEGABYTES * 1024, f"{grown} kB"
    return said


BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
    ),
    "merges": "a: &a {k1: 1, k2: 2}\n"
    + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} {{!!merge <<: [{','.join([f'*{chr(97 + i)}'] * 9)}]}}\n"
        for i in range(9)
    ),
    "itself": "a: &a [*a]",
    "itself in a mapping": "&a {x: *a}",
    "merges itself": "a: &a {!!merge <<: *a}",
    "deep": "data: " + "[" * 5000,
    "deep mappings": "{a: " * 2000,
    "deep blocks": "- " * 5000,
    "deep indents": "".join(f"{' ' * i}a:\n" for i in range(600)),
    "many keys": "".join(f"k{i}: 1\n" for i in range(2_000)),
    "digits": f"seeds: {{data: {'9' * 400}}}",
    "more digits": f"seeds: {{data: {'9' * 5000}}}",
    "infinity": "memory: {max_mb: 1e999}",
    "not a number": "memory: {max_mb: .nan}",
    "list as key": "? [a, b]\n: 1",
    "mapping as key": "data: {root: {{DATA}}}",
    "key of null": "? \n: 1",
    "no boolean": "data: {root: !!bool maybe}",
    "no number": "memory: {size: !!int x}",
    "empty number": "memory: {size: !!int ''}",
    "no float": "memory: {max_mb: !!float x}",
    "date": "a: !!timestamp x",
    "bytes": "a: !!binary '*'",
    "set": "a: !!set {x, y}",
    "code": "!!python/object/apply:os.system [x]",
    "half a surrogate": 'description: "\\ud800"',
    "zero byte": 'data: {root: "a\\0b"}',
    "zero byte in a parent": 'parent: "a\\0b.yaml"',
    "dots": "name: ..",
    "path": "name: ../../x",
    "parents in a circle": "parent: ./config.yaml",
    "parent is a device": "parent: /dev/zero",
    "parent is a folder": "parent: ./",
    "documents": "--- a\n--- b",
    "tabs": "a:\n\tb: 1",
    "numbers as keys": "data: {1: 2, null: 3, true: 4}",
    "long key": f"{'k' * 900}: 1",
    "wrong sections": "data: 5\nmemory: []\nseeds: x\nmethods: 3",
    "wrong presets": "methods: {grace: 5, der: {base: []}, x: {}}",
    "method of another shape": "method: [a, b]",
    "control characters": "description: \x07",
    "colours": 'description: "\\x1b[31m"',
}


NO_TEXT = {
    "no UTF-8": b"\xff\xfe",
    "no UTF-8 in a value": b"name: \xff",
    "zeros": b"\x00" * 100,
    "a half character": b"\xed\xa0\x80",
}


@pytest.mark.parametrize("name", [*BOMBS, *NO_TEXT])
def test_configs(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(NO_TEXT.get(name) or BOMBS[name].encode(errors="surrogatepass"))
    said = attack(lambda: load_experiment(str(path)))
    assert len(said) < 20_000
    assert bool(said) == (name not in ("colours",)), said


def places(tmp_path: Path) -> Iterator[Path]:
    """What may stand in the place of a text file."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "gone.yaml").symlink_to("/nonexistent")
    with (tmp_path / "hole.yaml").open("wb") as file:
        file.truncate(2**40)
    return tmp_path.glob("*.yaml")


def test_what_stands_in_place_of_a_config(tmp_path: Path) -> None:
    for path in places(tmp_path):
        assert attack(lambda path=path: load_experiment(str(path))), path  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "data.root={x}", "data.root={{x}}", "data.root=[", "=1", ".=1", "a..b=1", "name=..",
        "name=.", "name=a/b", "seed=-1", "seed=1e400", f"seed={'9' * 400}", "seed=[1]",
        "method={name: [x]}",
        "method=[]", "method.name=..", "data=1", "data.x.y.z=1", "engine.threads=100000",
        "engine.threads=1e99", "memory.max_mb=1e999", "memory.size=!!int x", f"{'a.' * 3000}b=1",
        "description=\udcff", "name=\udcff", "backbone.weights=\x1b.safetensors", "methods=1",
        "methods.1=2", "methods.der=3", "seeds=1", "data.augmentation={a: b}",
        "data.augmentation=[[]]", "data.augmentation=[{crop: 9999999999999999999}]",
        "scenario.class_order=[1, 1]",
        "data.augmentation=['cutout:1e999']", "method.base.groups={a: {lr_factor: .nan}}",
        "method.base.milestones=[a]", "method.base.betas=[1]", "x: y=3", "&a=*a",
        "data.root=&a [*a]",
    ],
)  # fmt: skip
def test_settings_of_the_command_line(text: str) -> None:
    said = attack(lambda: load_experiment("digits", [text]))
    assert len(said) < 20_000


def mutated(raw: Any, draw: random.Random) -> Any:
    """Return a copy of a JSON value with one value replaced, dropped or moved."""
    raw = json.loads(json.dumps(raw))
    spots: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            spots.append((value, key))
            if isinstance(inner, dict | list) and inner:
                collect(inner)

    collect(raw)
    holder, key = draw.choice(spots)
    if draw.random() < 0.2:
        del holder[key]
    else:
        holder[key] = draw.choice(ODD_VALUES)
    return raw


def everything_about(records: Any) -> list[str]:
    """Make all pages and tables of some records."""
    result = compared(records)
    page = records[0].directory.parent / "report.html"
    latex = [table.to_latex() for table in study_tables(result)]
    return [write_report(records, page).read_text(), numbers_csv(result), *latex]


@pytest.mark.parametrize("number", range(16))
def test_records(make_record: MakeRecord, number: int) -> None:
    draw = random.Random(f"{SEED} {number}")  # noqa: S311
    good, bad = make_record("der", 1), make_record("grace", 2)
    name = draw.choice(["run.json", "tasks.jsonl"])
    path = bad.directory / name
    lines = path.read_text().split("\n") if name == "tasks.jsonl" else [path.read_text()]
    place = draw.randrange(5) if name == "tasks.jsonl" else 0
    lines[place] = json.dumps(mutated(json.loads(lines[place]), draw))
    path.write_text("\n".join(lines))
    said = attack(lambda: read_record(bad.directory))
    # One bad record among good ones is named, and the others are reported.
    records, left_out = read_records([good.directory, bad.directory])
    assert good.directory in [record.directory for record in records]
    assert len(left_out) == (1 if said else 0)
    if number % 3 == 0:  # Pages take a second.
        attack(lambda: everything_about(records))


LINES: dict[str, bytes] = {
    "deep": b"[" * 100_000,
    "digits": b'{"task": ' + b"9" * 400 + b"}",
    "infinite": b'{"task": 1, "saturation": Infinity}',
    "not a number": b'{"task": NaN}',
    "too large": b'{"task": 1e999}',
    "no UTF-8": b'{"task": "\xff"}',
    "key twice": b'{"task": 1, "task": 2}',
    "values": b"[" + b"[]," * 2_100_000 + b"[]]",
    "objects": b"[" + b"{}," * 600_000 + b"{}]",
    "string without end": b'"' + b"a" * 2**20,
    "zero bytes": b"\0" * 2**20,
}


@pytest.mark.parametrize("name", LINES)
def test_lines_of_records(make_record: MakeRecord, name: str) -> None:
    record = make_record()
    for file in ("run.json", "tasks.jsonl"):
        kept = (record.directory / file).read_bytes()
        (record.directory / file).write_bytes(LINES[name] + b"\n")
        assert attack(lambda: read_record(record.directory))
        (record.directory / file).write_bytes(kept)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"saturation": 1e300}, "saturation"),
        ({"confusion": [[1, 2], [3]]}, "not square"),
        ({"num_new": -1}, "num_new"),
        ({"seconds": {"learn": -1, "evaluate": 0, "total": 0}}, "seconds"),
        ({"classifiers": {"a": {"all": 1, "per_task": [1, 2, 3]}}}, "3 per-task accuracies"),
    ],
)
def test_shapes_and_numbers_of_records_agree(
    make_record: MakeRecord, change: dict[str, Any], says: str
) -> None:
    path = make_record().directory / "tasks.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | change), *rest, ""]))
    assert says in attack(lambda: read_record(path.parent))


def test_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ODD_TEXTS:
        console.say(text)
        console.emit_json({text: [text]})
        console.terminal(err=True).print(console.text_of(text), soft_wrap=True)
        out, err = capsys.readouterr()
        assert json.loads(out.partition("\n")[2]) == {text: [text]}
        for line in [*out.splitlines(), *err.splitlines()]:
            assert all(char.isprintable() for char in line), line
        assert out.count("\n") == 6


@pytest.mark.parametrize("text", ODD_TEXTS[:9:2])
def test_pages(make_record: MakeRecord, text: str) -> None:
    names = [text, *(f"{text}{index}" for index in range(1, 10))]
    record = make_record(class_names=names, error=text, overrides=[])
    path = record.directory / "run.json"
    raw = json.loads(path.read_text())
    raw |= {"experiment": text, "description": text, "notes": [text], "commit": text}
    raw["config"]["method"]["name"] = text
    raw["hardware"]["cpu"] = text
    path.write_text(json.dumps(raw))
    page, csv, latex = everything_about([read_record(record.directory)])
    for written in (page, latex):
        assert all(char.isprintable() or char == "\n" for char in written)
    assert "<script>alert" not in page
    assert "\\\\[" not in latex.replace("\\\\\n", "")
    assert not any(line.startswith(("[", "*")) for line in latex.splitlines())
    # The text is one cell, one heading or one item everywhere: it cannot add a line.
    plain = make_record("grace", 9).directory
    other = everything_about([read_record(plain)])[2]
    assert abs(latex.count("\n") - other.count("\n")) < 8
    assert not any(cell[:1] in "=+-@" for cell in csv.split("\n")[1].split(",")[:3] if cell)
