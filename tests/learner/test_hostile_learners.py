"""Damaged and forged learners get one clear error, or a sound answer; see ``hostile.py``."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from support import hostile_objects
from support.hostile_model import PROBE, Model, update
from support.hostile_mutations import KINDS, KINDS_OF_FILE, replace
from support.hostile_objects import Piece

TESTS = Path(__file__).parents[1]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_hundreds_of_mutants(tmp_path: Path) -> None:
    """All special ones, and drawn ones; ``benchmarks/hostile_files.py`` examines 20,000."""
    work, out = tmp_path / "work", tmp_path / "report.json"
    work.mkdir()
    program = [sys.executable, "-m", "support.hostile", str(work), "--out", str(out)]
    done = subprocess.run(
        [*program, "--count", "300", "--seed", "0", "--quick"],
        cwd=TESTS,
        env=ALONE,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert out.exists(), done.stderr
    report = json.loads(out.read_text())
    assert report["failures"] == []
    assert done.returncode == 0, done.stderr
    counts: Mapping[str, Mapping[str, int]] = report["counts"]
    assert sum(number for found in counts.values() for number in found.values()) == 300
    assert counts.keys() == {"special", *KINDS}
    # Every object is known by its hash, but a file that no version in use needs may be anything.
    assert counts["damaged object"].keys() == {"refused"}
    assert counts["damaged unused file"].keys() == {"answered"}
    # Many numbers of a document and many weights have other values that are as good.
    for kind in ("forged document", "forged object"):
        assert min(counts[kind]["refused"], counts[kind]["answered"]) > 15


MISDEEDS = {
    "reads elsewhere": ("open('/etc/hostname').close()", "open leaves the model"),
    "reads elsewhere by a link": ("open('model/link/file').close()", "open leaves the model"),
    "lists elsewhere": ("os.listdir('model/link')", "os.listdir leaves the model"),
    "writes elsewhere": ("open('outside/new', 'w').close()", "open leaves the model"),
    "writes here": ("open('model/new', 'w').close()", "open changes 'model/new'"),
    "removes elsewhere": ("os.remove('model/link/file')", "os.remove leaves the model"),
    "renames": ("os.rename('model/old', 'outside/old')", "os.rename changes 'model/old'"),
    "runs a program": ("os.system('true')", "os.system(b'true',)"),
    "runs another program": ("subprocess.run(['true'])", "subprocess.Popen("),
    "calls": ("socket.socket()", "socket.__new__("),
    "runs text": ("eval('1 + 1')", "compile("),
    "runs code": ("exec(CODE)", "exec("),
    "finds a class by its name": ("pickle.loads(STREAM)", "pickle.find_class("),
    "computes": ("while True: pass", "took more than 0.2 s"),
    "waits": ("time.sleep(20)", "took more than 0.2 s"),
    "takes memory": ("block = b'x' * 700_000_000", "MB more memory"),
}
MISBEHAVE = """
import json, os, pickle, socket, subprocess, sys, time
from pathlib import Path
from support.hostile_guard import Guard
CODE = compile('1', 'elsewhere.py', 'eval')
STREAM = pickle.dumps(Path)
guard, found = Guard(Path('model')), {}
guard.is_learning = False
for name, text in json.loads(sys.argv[1]).items():
    code = compile(text, __import__('support.hostile_guard').hostile_guard.__file__, 'exec')
    seconds = 0.2 if name in ("computes", "waits") else 1
    with guard.watching(may_write=False, seconds=seconds) as wrong:
        exec(code)
    found[name] = wrong
print(json.dumps(found))
"""


def test_the_guard_notices_what_must_not_be(tmp_path: Path) -> None:
    for folder in ("model", "outside"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    (tmp_path / "model" / "old").touch()
    (tmp_path / "model" / "link").symlink_to(tmp_path / "outside")
    harmless = "open('model/file').close(); os.listdir('model'); sorted(range(9))"
    texts = {name: text for name, (text, _) in MISDEEDS.items()} | {"nothing": harmless}
    done = subprocess.run(
        [sys.executable, "-c", MISBEHAVE, json.dumps(texts)],
        cwd=tmp_path,
        env={**ALONE, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("nothing") == []
    missed = {n: found[n] for n, (_, what) in MISDEEDS.items() if what not in str(found[n])}
    assert missed == {}


KINDS_OF_ENTRY = {
    "versions/0002.json": ("a link to what it was", "is damaged: it is a link, and links are not"),
    "current.json": ("a pipe", "is damaged: it is no regular file"),
    "model.json": ("a folder", "is damaged: it is no regular file"),
    "versions": ("a link to a folder elsewhere", "is a link, and links are not followed"),
    "objects": ("a link to what it was", "is a link, and links are not followed"),
    "pending": ("a link to a folder elsewhere", "is a link, and links are not followed"),
}


@pytest.mark.parametrize("name", KINDS_OF_ENTRY)
def test_other_kinds_of_file_are_not_opened(spoilt: Model, name: str) -> None:
    kind, message = KINDS_OF_ENTRY[name]
    replace(spoilt.path / name, kind)
    with pytest.raises(ValueError, match=message) as refusal:
        Learner.load(spoilt.path)
    assert f"'{spoilt.path / name}'" in str(refusal.value)


def test_a_journal_that_was_altered_changes_nothing(spoilt: Model) -> None:
    learner = Learner.load(spoilt.path)
    update(learner)
    expected = learner.predict_proba(PROBE)
    spoilt.restore()
    for path in sorted((spoilt.path / "pending").glob("*.safetensors")):
        said, pieces = hostile_objects.read_entry(path.read_bytes())
        said = said.replace('"plain":0.', '"plain":0.9')
        doubled = {
            name: Piece(p.dtype, p.shape, p.data[4:] + p.data[:4]) for name, p in pieces.items()
        }
        path.write_bytes(hostile_objects.write_entry(said, doubled, right=False))
    learner = Learner.load(spoilt.path)
    update(learner)
    assert bool((learner.predict_proba(PROBE) == expected).all())


def test_a_journal_that_lies_is_blamed(spoilt: Model) -> None:
    path = spoilt.path / "pending" / "0001.safetensors"
    said, pieces = hostile_objects.read_entry(path.read_bytes())
    facts = json.loads(said)
    assert (facts["kind"], facts["name"]) == ("sweep", "assess")
    said = json.dumps({**facts, "value": {"plain": "high"}})
    path.write_bytes(hostile_objects.write_entry(said, pieces, right=True))
    learner = Learner.load(spoilt.path)
    with pytest.raises(ValueError, match=r"cannot go on: .*: begin anew") as refusal:
        update(learner)
    assert str(spoilt.path / "pending") in str(refusal.value)
    assert isinstance(refusal.value.__cause__, TypeError)


def test_a_lock_of_two_names_is_not_written_into(spoilt: Model) -> None:
    replace(spoilt.path / "lock", "a second name of a file elsewhere")
    learner = Learner.load(spoilt.path)
    update(learner)
    secret = spoilt.path.parent / "outside" / "secret.json"
    assert secret.read_text() == '{"version": 1}\n'


def test_folders_too_deep_to_remove_are_an_error(spoilt: Model) -> None:
    (spoilt.path / "pending" / "update.json").unlink()
    # Deeper than paths may be long, as archives can hold them.
    dig = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
    pending = spoilt.path / "pending"
    subprocess.run([sys.executable, "-c", dig], cwd=pending, check=True)
    try:
        message = refusal(lambda: update(Learner.load(spoilt.path)))
    finally:
        subprocess.run(["rm", "-r", str(pending)], check=True)
    # Where few files may be open at once, the system refuses before we do.
    assert message.startswith((f"'{pending}' holds folders too deep to remove", "[Errno 24]"))


ENTRIES = st.sampled_from(
    [
        "model.json",
        "current.json",
        "purge.json",
        "lock",
        "versions",
        "versions/0001.json",
        "versions/0002.json",
        "versions/0003.json",
        "objects",
        "objects/a.safetensors",
        "pending",
        "pending/update.json",
        "pending/0000.safetensors",
        "notes.txt",
    ]
)
ACTS = st.tuples(ENTRIES, st.sampled_from([*KINDS_OF_FILE, "what another was"]), ENTRIES)


@hypothesis_settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(acts=st.lists(ACTS, min_size=1, max_size=4))
def test_any_layout_is_read_or_refused(
    sound_model: Model, acts: list[tuple[str, str, str]]
) -> None:
    path = sound_model.path
    try:
        for name, kind, source in acts:
            spoil_entry(sound_model, name, kind, source)
        before = sound_model.looks()
        for ask in (lambda: ModelStore.open(path).documents(), lambda: Learner.load(path)):
            message = refusal(ask)
            if message is not None:
                assert message.isprintable()
                assert str(path) in message
        assert sound_model.looks() == before
    finally:
        sound_model.restore()


def refusal(ask: Callable[[], object]) -> str | None:
    """Return the message of an error that people may get; none where there is no error."""
    try:
        ask()
    except (ValueError, OSError) as error:
        return str(error)
    return None


def spoil_entry(model: Model, name: str, kind: str, source: str) -> None:
    """Put something else in an entry's place, as far as the acts before have left one."""
    path, data = model.path / name, model.files.get(Path(source), b"\0\xff{" * 30)
    try:
        if kind == "what another was":
            path.write_bytes(data)
        elif kind != "missing" or path.exists():
            replace(path, kind)
    except OSError:
        pass  # It is no place for a file now.
