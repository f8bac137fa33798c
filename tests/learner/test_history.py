"""Versions of a learner, damaged and pruned ones too, its history, and the ledger made from it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.base.errors import DamagedError
from grace.engine.work import Seconds, WorkDone
from grace.learner.document import UpdateRecord
from grace.learner.history import LedgerRow, ledger
from grace.learner.inventory import facts
from grace.learner.learner import Learner
from grace.learner.store import ModelStore, bytes_of
from grace.methods.outcome import Outcome
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.commands import call
from support.learn_calls import files
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import SIZE, class_names, labelled, pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def teach(made: Learner, *indices: int) -> None:
    data = labelled(dict.fromkeys(indices, 8))
    made.update(data.images, class_names(data))


@pytest.fixture(scope="module")
def original(tiny_backbones: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions of two, three, four and five classes."""
    home = tmp_path_factory.mktemp("versions") / "model"
    method = Replay.Settings(base=recipe(), update=recipe())
    chosen = settings(method, memory=MemorySettings(size=20, validation=2))
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=home)
    for indices in ((0, 1), (2,), (3,), (4,)):
        teach(made, *indices)
    return home


@pytest.fixture
def home(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


def spoil(home: Path, number: int, how: str) -> None:
    path = home / "versions" / f"{number:04d}.json"
    if how == "cut":
        path.write_bytes(path.read_bytes()[:100])
        return
    path.unlink()
    if how == "link":
        path.symlink_to("/etc/hostname")
    if how == "folder":
        path.mkdir()
        (path / "x").touch()
    if how == "huge":
        path.touch()
        os.truncate(path, 1 << 40)


@pytest.mark.parametrize("how", ["cut", "link", "folder", "huge"])
class TestDamaged:
    def test_it_does_not_block_the_others(self, home: Path, how: str) -> None:
        """Learning committed the update and ended with status 2; the others were refused."""
        spoil(home, 2, how)
        made = Learner.load(home)
        teach(made, 5)
        assert made.version == 5
        for verb in ("info", "history"):
            result = call(verb, home)
            assert result.exit_code == 0
            assert "is damaged" in result.stderr or "damaged versions" in result.stdout
        made.rollback(3)
        assert facts(ModelStore.open(home))["damaged_versions"] == [2]

    def test_forgetting_removes_it(self, home: Path, how: str) -> None:
        spoil(home, 2, how)
        result = call("forget", home, "class 1", "--yes")
        assert result.exit_code == 0
        assert "removed version 2, which cannot be read" in result.stdout
        store = ModelStore.open(home)
        assert store.numbers() == [1, 3, 4]
        assert all(1 in document.forgotten for document in store.documents())
        wanted = [image.numpy().tobytes() for image in pictures(1, 8)]
        kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        assert not any(image in data for image in wanted for data in kept)

    def test_pruning_removes_it(self, home: Path, how: str) -> None:
        spoil(home, 3, how)
        assert call("prune", home, "--keep", "3").exit_code == 0
        assert ModelStore.open(home).numbers() == [2, 4]

    def test_the_version_in_use_still_counts(self, home: Path, how: str) -> None:
        spoil(home, 4, how)
        for arguments in (["info", home], ["history", home], ["forget", home, "class 1", "--yes"]):
            result = call(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
        assert (call("rollback", home, 3).exit_code, call("info", home).exit_code) == (0, 0)


class TestPrune:
    def test_the_newest_stay(self, home: Path) -> None:
        before = Learner.load(home).predict_proba(pictures(0, 3))
        result = call("prune", home, "--keep", "2")
        assert result.stdout.startswith(f"removed versions 1, 2 of '{home}': ")
        store = ModelStore.open(home)
        assert store.numbers() == [3, 4]
        used = {r.sha256 for made in store.documents() for r in made.refs}
        assert {path.stem for path in (home / "objects").iterdir()} == used
        assert torch.equal(Learner.load(home).predict_proba(pictures(0, 3)), before)
        before_files = files(home)
        again = call("prune", home, "--keep", "2")
        assert "has no version to remove: nothing to do" in again.stdout
        assert files(home).keys() == before_files.keys()

    def test_the_one_in_use_stays(self, home: Path) -> None:
        Learner.load(home).rollback(2)
        call("prune", home, "--keep", "1")
        assert ModelStore.open(home).numbers() == [2, 4]
        call("prune", home, "--keep", "0")
        assert ModelStore.open(home).numbers() == [2]

    def test_the_one_that_an_interrupted_update_starts_from_stays(self, home: Path) -> None:
        store = ModelStore.open(home)
        with store.changing():
            store.begin(4, "0" * 64)
        Learner.load(home).rollback(2)
        call("prune", home, "--keep", "0")
        assert store.numbers() == [2, 4]

    def test_a_ceiling_takes_the_oldest_first(self, home: Path) -> None:
        store = ModelStore.open(home)
        documents = store.documents()
        sizes = [bytes_of(documents[first:]) for first in range(4)]
        assert sizes == sorted(sizes, reverse=True)
        assert list(store.prune(max_mb=sizes[0] / 1e6)) == []
        assert list(store.prune(max_mb=(sizes[0] - 1) / 1e6)) == [1]
        # The one before the one in use goes last, and the one in use never.
        Learner.load(home).rollback(3)
        most = 1.2 * bytes_of([documents[2], documents[1]])
        assert list(store.prune(max_mb=most / 1e6)) == [4]
        assert list(store.prune(max_mb=0.0)) == [2]
        assert store.numbers() == [3]
        result = call("prune", home, "--max-disk-mb", "0.001")
        # What was asked for is done in part.
        assert result.exit_code == 1
        assert result.stderr == (
            "warning: the version in use alone takes more than the 0.001 MB asked for\n"
        )

    def test_what_shall_stay_must_be_said(self, home: Path) -> None:
        assert "give either --keep or --max-disk-mb" in call("prune", home).stderr
        both = call("prune", home, "--keep", "1", "--max-disk-mb", "3")
        assert (both.exit_code, ModelStore.open(home).numbers()) == (2, [1, 2, 3, 4])


class TestHistory:
    def test_all_that_happened_has_a_line(self, home: Path) -> None:
        made = Learner.load(home)
        made.rollback(2)
        made.forget("class 1")
        made.keep_within(0)
        made.change_settings("memory.size=8")
        teach(made, 1, 5)
        told = [
            (c.kind, c.version, c.versions, c.class_name, c.was_in_use)
            for c in ModelStore.open(home).log.changes()
        ]
        assert told == [
            *(("learn", number, (), "", None) for number in (1, 2, 3, 4)),
            ("rollback", 2, (), "", 4),
            ("forget", None, (1, 2, 3, 4), "class 1", None),
            ("prune", None, (1, 3, 4), "", None),
            ("set", 5, (), "", None),
            ("learn", 6, (), "", None),
        ]
        text = call("history", home).stdout
        places = [text.index(t) for t in ("put version 2", "forgot class 1", "removed versions 1")]
        assert places == sorted(places)
        assert made.history[-1].revived_class_names == ("class 1",)
        shown = json.loads(call("info", home, "--json").stdout)
        assert [own["kind"] for own in shown["changes"]] == [own[0] for own in told]

    @pytest.mark.parametrize("how", ["cut", "no line", "link", "folder", "huge"])
    def test_a_damaged_history_blocks_nothing(self, home: Path, how: str) -> None:
        made, path = Learner.load(home), home / "history.jsonl"
        made.rollback(2)
        before = path.read_bytes()
        path.unlink()
        match how:
            case "link":
                path.symlink_to("/etc/hostname")
            case "folder":
                path.mkdir()
            case "huge":
                path.touch()
                os.truncate(path, 1 << 40)
            case "no line":
                path.write_bytes(before + b'{"kind":"prune"}\n')
            case "cut":
                path.write_bytes(before[:-9])
        refused = call("history", home)
        assert refused.exit_code == 2
        assert "move it away, or restore it from a backup" in refused.stderr
        assert refused.stderr.count("\n") == 1
        made.rollback(3)
        readable = [own.kind for own in ModelStore.open(home).log.readable()]
        assert readable.count("learn") == 4
        assert readable[-1] == "rollback"
        aside = home / "history.damaged.1.jsonl"
        assert os.path.lexists(aside) == (how in ("link", "folder", "huge"))

    def test_a_version_of_a_killed_process_is_listed_and_then_noted(self, home: Path) -> None:
        store = ModelStore.open(home)
        lines = (home / "history.jsonl").read_bytes().splitlines(keepends=True)
        (home / "history.jsonl").write_bytes(b"".join(lines[:-1]))
        assert [change.version for change in store.history()] == [1, 2, 3, 4]
        with store.changing():
            pass
        assert (home / "history.jsonl").read_bytes() == b"".join(lines)

    def test_it_stays_bounded(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("grace.learner.history.MAX_BYTES", 4000)
        made = Learner.load(home)
        for number in (1, 2, 3, 4) * 5:
            made.rollback(number)
        assert (home / "history.jsonl").stat().st_size <= 4000
        assert ModelStore.open(home).log.changes()[-1].version == 4

    def test_to_learn_what_was_rolled_back_from_is_noted(self, home: Path) -> None:
        made = Learner.load(home)
        made.rollback(3)
        teach(made, 4)
        store = ModelStore.open(home)
        assert (made.version, store.current(), store.numbers()) == (4, 4, [1, 2, 3, 4])
        told = [(own.version, own.was_in_use) for own in store.log.changes()[4:]]
        assert told == [(3, 4), (4, 3)]

    def test_a_damaged_unfinished_change_says_what_to_do(self, home: Path) -> None:
        (home / "change.json").write_text("{")
        for arguments in (["prune", home, "--keep", "1"], ["rollback", home, 2], ["info", home]):
            result = call(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert "move it away, and repeat the command that was interrupted" in result.stderr
        assert ModelStore.open(home).numbers() == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        "forged",
        [
            {"kind": "prune", "date": "2026", "class_names": ["a"], "versions": [1]},
            {"kind": "forget", "date": "2026", "versions": [1]},
            {"kind": "rollback", "date": "2026", "versions": [1]},
            {"kind": "learn", "date": "2026"},
            {"kind": "erase", "date": "2026"},
        ],
    )
    def test_lines_that_say_nothing_are_refused(self, forged: dict[str, Any], home: Path) -> None:
        with (home / "history.jsonl").open("a") as file:
            file.write(json.dumps(forged) + "\n")
        with pytest.raises(DamagedError, match="line 5 of"):
            ModelStore.open(home).log.changes()


class TestNumbers:
    """A number is given once: the history would else tell of two versions of one number."""

    def test_a_pruned_number_is_not_given_again(self, home: Path) -> None:
        made = Learner.load(home)
        made.rollback(3)
        made.keep_within(0)
        call("prune", home, "--keep", "0")
        assert ModelStore.open(home).numbers() == [3]
        teach(made, 5)
        assert made.version == 5
        made.change_settings("memory.size=18")
        assert made.version == 6
        made.rollback(3)
        call("prune", home, "--max-disk-mb", "0.001")
        teach(made, 4)
        assert made.version == 7
        told = json.loads(call("history", home, "--json").stdout)
        updates = [own["version"] for own in told if own["kind"] == "learn"]
        assert updates == [1, 2, 3, 4, 5, 7]
        noted = [n for own in told if own["kind"] == "prune" for n in own["versions"]]
        assert noted == [1, 2, 4, 5, 6]

    def test_nor_that_of_a_damaged_version(self, home: Path) -> None:
        Learner.load(home).rollback(3)
        spoil(home, 4, "cut")
        assert call("forget", home, "class 1", "--yes").exit_code == 0
        assert ModelStore.open(home).numbers() == [1, 2, 3]
        made = Learner.load(home)
        teach(made, 5)
        assert made.version == 5

    def test_an_interrupted_update_goes_on_after_the_newest_version_was_pruned(
        self, home: Path
    ) -> None:
        """It was refused as "an update with other images"."""
        store = ModelStore.open(home)
        Learner.load(home).rollback(3)
        with store.changing():
            store.begin(3, "0" * 64)
        call("prune", home, "--keep", "0")
        assert store.numbers() == [3]
        with store.changing():
            store.begin(3, "0" * 64)
        assert json.loads((home / "pending" / "update.json").read_text())["number"] == 5

    def test_a_forged_note_makes_no_version_that_nobody_finds(self, home: Path) -> None:
        forged = {"kind": "prune", "date": "2026", "versions": [10**20 - 1]}
        with (home / "history.jsonl").open("a") as file:
            file.write(json.dumps(forged) + "\n")
        made = Learner.load(home)
        with pytest.raises(ValueError, match="digits"):
            teach(made, 5)
        assert ModelStore.open(home).numbers() == [1, 2, 3, 4]
        assert Learner.load(home).version == 4


class TestLeftovers:
    def test_what_a_finished_update_left_is_removed(self, home: Path) -> None:
        """The process was killed at the very end: 2.2 MB lay there until the next update."""
        store = ModelStore.open(home)
        begun = {"parent": 3, "digest": store.document(4).digest, "number": 4}
        (home / "pending").mkdir()
        (home / "pending" / "update.json").write_text(json.dumps(begun))
        (home / "pending" / "0001.safetensors").write_bytes(bytes(1000))
        unused = home / "objects" / f"{'0' * 64}.safetensors"
        unused.write_bytes(bytes(1000))
        with store.changing():
            assert not (home / "pending" / "0001.safetensors").exists()
            assert not unused.exists()
            # That it is done is still known: learning it --again would be one update more.
            assert store.has_saved(begun["digest"])


def entries_of(path: Path) -> list[LedgerRow]:
    """The ledger of a home."""
    home = ModelStore.open(path)
    return ledger(home.history(), home.numbers(), home.current())


class TestLedger:
    def test_every_version_is_a_row(self, saved: Path) -> None:
        rows = entries_of(saved)
        changes, updates = [row.change for row in rows], [row.update for row in rows]
        assert [change.version for change in changes] == [1, 2, 3, 4, 5]
        assert [change.parent for change in changes] == [None, 1, 2, 3, 3]
        assert [change.status for change in changes] == [
            "accepted", "accepted", "accepted", "rejected", "accepted"
        ]  # fmt: skip
        assert [row.is_current for row in rows] == [False] * 4 + [True]
        assert [len(row.class_names) for row in rows] == [2, 3, 4, 5, 5]
        assert [update.outcome.verdict for update in updates] == [
            "start", "compress", "grow", "compress", "compress"
        ]  # fmt: skip
        assert [own.num_backbones for own in updates] == [(0, 1), (1, 1), (1, 2), (2, 2), (2, 2)]
        # A ResNet-8 has 74,640 parameters, its head 65 of each class; that of two 129.
        counts = [0, 74_640 + 130, 74_640 + 195, 149_280 + 516, 149_280 + 645]
        places = [(0, 1), (1, 2), (2, 3), (3, 4), (3, 4)]
        expected = [(counts[before], counts[after]) for before, after in places]
        assert [own.num_parameters for own in updates] == expected
        # Three of each of four classes.
        accuracy = updates[3].accuracy
        assert accuracy.num_old == 12
        assert accuracy.old_before - accuracy.old_after > 0.05

    def test_removed_versions_and_settings_are_told(self, copied: Path) -> None:
        made = Learner.load(copied)
        made.change_settings("memory.max_mb=4")
        digest = ModelStore.open(copied).document(5).digest
        made.keep_within(0)
        entries = entries_of(copied)
        assert [entry.change.version for entry in entries] == [1, 2, 3, 4, 5, 6]
        assert [entry.is_removed for entry in entries] == [True] * 5 + [False]
        assert [entry.change.kind for entry in entries] == ["learn"] * 5 + ["set"]
        assert [len(entry.class_names) for entry in entries] == [2, 3, 4, 5, 5, 5]
        assert [entry.update.task for entry in entries] == [1, 2, 3, 4, 4, 4]
        assert entries[4].change.digest == digest

    def test_a_learner_that_was_saved_later_tells_all_its_updates(self, tmp_path: Path) -> None:
        made = Learner.create(
            settings(Replay.Settings(base=recipe(), update=recipe())), shape=(3, SIZE, SIZE)
        )
        for counts in ({0: 6, 1: 6}, {2: 6}):
            data = labelled(counts)
            made.update(data.images, class_names(data))
        made.save(tmp_path / "late")
        entries = entries_of(tmp_path / "late")
        assert [(entry.change.version, entry.is_current) for entry in entries] == [
            (None, False),
            (1, True),
        ]
        objects = sum(path.stat().st_size for path in (tmp_path / "late" / "objects").iterdir())
        document = (tmp_path / "late" / "versions" / "0001.json").stat().st_size
        assert entries[0].change.num_bytes is None
        assert entries[1].change.num_bytes == objects + document


def test_the_seconds_of_interrupted_processes_count() -> None:
    work = (
        WorkDone("grow", 2, 10, seconds=Seconds(total=5.0, earlier=5.0)),
        WorkDone("compress", 2, 10, seconds=Seconds(total=4.0, earlier=1.5)),
    )
    update = UpdateRecord(
        task=1, new_class_names=(), outcome=Outcome(verdict="start"), work=work, seconds=3.0
    )
    assert update.all_seconds == 9.5
    assert update.past.seconds == update.past.past.seconds == update.past.all_seconds == 9.5
