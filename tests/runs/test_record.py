import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grace.base.errors import GraceError
from grace.runs.model import RunInfo
from grace.runs.provenance import collect_hardware, collect_versions, commit, fingerprints
from grace.runs.record import RecordWriter, find_runs, read_record, read_records, run_directory
from grace.settings.load import load_experiment
from support.synthetic_records import MakeRecord


def test_what_is_written_is_read_back(make_record: MakeRecord) -> None:
    written = make_record("grace", 2)
    read = read_record(written.directory)
    assert read == written
    assert (read.method, read.seed, read.complete) == ("grace", 2, True)
    assert (len(read.tasks), read.matrix[0][1]) == (5, None)
    assert read.last == read.tasks[-1].classifiers["linear"].all
    assert read.seconds == pytest.approx(5 * 1.75)


def test_nothing_else_lies_in_the_directory(make_record: MakeRecord) -> None:
    record = make_record()
    assert sorted(path.name for path in record.directory.iterdir()) == ["run.json", "tasks.jsonl"]
    raw = json.loads((record.directory / "run.json").read_text())
    assert (raw["format"], raw["status"]) == (1, "finished")
    assert set(raw) == set(RunInfo.model_fields)


def test_task_aware_numbers_by_hand(make_record: MakeRecord) -> None:
    """Two tasks of two classes and one of one; the last row is what the table shows."""
    path = make_record("der", task_sizes=(2, 2, 1)).directory / "tasks.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [[90.0], [80.0, 70.0], [85.0, 40.0, 100.0]]
    for line, row, overall in zip(lines, rows, (90.0, 75.0, 70.0), strict=True):
        line["classifiers"]["linear"]["task_aware"] = {"all": overall, "per_task": row}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_record(path.parent)
    assert (read.accuracies(task_aware=True), read.task_aware_last) == ([90.0, 75.0, 70.0], 70.0)
    # What the classifier says untold is untouched.
    assert read.last == lines[2]["classifiers"]["linear"]["all"]


def test_a_running_run_has_no_numbers(make_record: MakeRecord) -> None:
    running = read_record(make_record("der", done=0, status="running").directory)
    assert (running.info.status, running.tasks, running.complete) == ("running", (), False)
    assert not read_record(make_record("grace", done=0, task_sizes=()).directory).complete
    assert (running.last, running.average, running.forgetting) == (None, None, None)


@pytest.mark.parametrize("cut", [2, 300])
def test_a_line_that_was_cut_off_is_refused(make_record: MakeRecord, cut: int) -> None:
    path = make_record().directory / "tasks.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(GraceError, match=r"line 5 of .* is damaged"):
        read_record(path.parent)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw | {"format": 2}, "format 2, this grace reads up to 1: upgrade"),
        (lambda raw: {k: v for k, v in raw.items() if k != "format"}, "names no format"),
        (lambda raw: raw | {"status": "odd"}, "damaged: status"),
        (lambda raw: [raw], "names no format"),
    ],
)
def test_foreign_run_files(make_record: MakeRecord, change: object, says: str) -> None:
    assert callable(change)
    path = make_record().directory / "run.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=says):
        read_record(path.parent)


def test_damage_is_named(make_record: MakeRecord, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run"):
        read_record(tmp_path)
    path = make_record().directory / "tasks.jsonl"
    lines = path.read_text().splitlines()
    for text, why in (
        ([lines[0], "{", *lines[2:]], r"line 2 of .* is damaged"),
        ([lines[0], lines[2]], r"line 2 of .* is damaged: it is task 3"),
    ):
        path.write_text("\n".join(text) + "\n")
        with pytest.raises(ValueError, match=f"{why}.*remove {path.parent} and run it again"):
            read_record(path.parent)
    (path.parent / "run.json").write_text('{"format": 1')
    with pytest.raises(ValueError, match=f"is damaged.*remove {path.parent} and run it again"):
        read_record(path.parent)


READ = """
import resource, sys
from grace.runs.record import read_record
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_record(sys.argv[1])
except ValueError as error:
    print(error)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss")
@pytest.mark.parametrize(
    "hostile",
    [
        b'"a",' * 4_000_000,
        b"{}," * 4_000_000,
        b"[]," * 4_000_000,
        b'"a":1,' * 3_000_000,
        b"0.5," * 8_000_000,
    ],
    ids=["texts", "objects", "lists", "entries", "numbers"],
)
def test_reading_takes_little_more_memory_than_the_file(
    make_record: MakeRecord, hostile: bytes
) -> None:
    path = make_record("der").directory / "tasks.jsonl"
    opening, closing = (b"{", b"}") if b":" in hostile else (b"[", b"]")
    value = opening + hostile[:-1] + closing
    path.write_bytes(b'{"task":1,"num_new":2,"class_names_new":' + value + b"}\n")
    found = subprocess.run(
        [sys.executable, "-c", READ, str(path.parent)], capture_output=True, text=True, check=True
    )
    *said, taken = found.stdout.splitlines()
    assert len(said) == 1
    assert "is damaged" in said[0]
    assert int(taken) < 12 * len(hostile)


def test_a_hole_of_a_terabyte_is_refused_by_its_size(make_record: MakeRecord) -> None:
    for seed, name in enumerate(("tasks.jsonl", "run.json")):
        directory = make_record("der", seed).directory
        os.truncate(directory / name, 2**40)
        with pytest.raises(GraceError, match="too large"):
            read_record(directory)


def test_an_existing_directory_is_left_alone(make_record: MakeRecord) -> None:
    record = make_record()
    before = (record.directory / "run.json").read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        RecordWriter(record.directory, record.info)
    assert (record.directory / "run.json").read_bytes() == before


def test_find_and_read_many(make_record: MakeRecord, tmp_path: Path) -> None:
    one, two = make_record("der", 1), make_record("der", 2)
    assert find_runs(one.directory) == [one.directory]
    assert find_runs(tmp_path) == sorted([one.directory, two.directory])
    records, left_out = read_records([tmp_path, one.directory])
    assert [record.seed for record in records] == [1, 2]
    assert left_out == []
    (two.directory / "run.json").write_text("{")
    records, left_out = read_records([tmp_path])
    assert [record.seed for record in records] == [1]
    assert "damaged" in left_out[0]
    with pytest.raises(ValueError, match="damaged"):
        read_records([two.directory])
    with pytest.raises(ValueError, match="holds no run"):
        find_runs(Path(__file__).parent)
    with pytest.raises(ValueError, match="does not exist"):
        find_runs(tmp_path / "absent")
    with pytest.raises(ValueError, match="is no directory"):
        find_runs(Path(__file__))


def digests(*overrides: str, data: str = "00", torch: str = "2") -> list[str]:
    """The fingerprints of protocol, run and first task."""
    found = fingerprints(load_experiment("digits", overrides), data, {"torch": torch})
    return [found[kind] for kind in ("protocol", "run", "first_task")]


@pytest.mark.parametrize(
    ("overrides", "same"),
    [
        # Base 0 means "as many as increment": the same protocol.
        *((text, "protocol run first_task") for text in (
            "engine.threads=2", "data.streaming=true", "scenario.base=2", "method.label_smoothing=0"
        )),
        *((text, "protocol first_task") for text in (
            "method=der", "method=memo", "method.grow.epochs=3", "method.threshold=0.1",
            "method.grow.average_epochs=2",
        )),
        # It decides what is kept after the first task, not what is learnt in it.
        ("memory.size=50", "first_task"),
        *((text, "protocol") for text in (
            "seed=3", "seeds.class_order=2", "seeds.initialisation=2", "seeds.data=2",
            "scenario.class_order=[1, 0]", "engine.precision=bfloat16", "method.base.epochs=11",
            "method=foster",  # cosine in its first task
            "method.base.weight_decay=0.1", "method.base.average_epochs=2",
            "method.label_smoothing=0.1",
        )),
        *((text, "") for text in (
            "backbone.name=resnet32", "scenario.increment=5", "scenario.base=4",
            "data.augmentation=none", "data.split_seed=4", "data.max_train_per_class=9",
            "memory.validation=3",
        )),
    ],
)  # fmt: skip
def test_what_fingerprints_cover(overrides: str, same: str) -> None:
    pairs = zip(digests(), digests(overrides), strict=True)
    kinds = zip(("protocol", "run", "first_task"), pairs, strict=True)
    assert " ".join(kind for kind, (one, other) in kinds if one == other) == same


def test_fingerprints_cover_files_and_versions() -> None:
    plain = digests()
    assert [len(digest) for digest in plain] == [64] * 3
    assert digests() == plain
    assert not set(digests(data="01")) & set(plain)
    assert set(digests(torch="3")) & set(plain) == {plain[0]}


def test_provenance_without_torch() -> None:
    versions = collect_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(versions) == {"grace", "python", "torch", "numpy", "torchvision"}
    hardware = collect_hardware("cpu", threads=2, processes=3)
    names = {"platform", "cpu", "cores", "threads", "device", "gpu", "processes"}
    assert set(hardware) == names
    assert hardware["processes"] == 3
    assert hardware["cpu"]
    head = commit()
    assert head is None or len(head.removesuffix("-dirty")) == 40


def test_a_run_is_named(make_record: MakeRecord) -> None:
    info = make_record("grace", 4).info
    name = run_directory(Path("runs"), info)
    assert name.parent == Path("runs/digits")
    assert name.name == f"grace-s4-20260102-030405-{info.fingerprints['run'][:8]}"
