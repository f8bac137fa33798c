"""Old versions: damaged ones block nothing, and they can be removed; all of it is noted."""

import json
import os
import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch

from grace.base.errors import DamagedError
from grace.learner.changes import Change, ChangeLog
from grace.learner.inventory import take_inventory
from grace.learner.learner import Learner
from grace.learner.pruning import bytes_of, keep_within
from grace.learner.removed import MAX_VERSIONS, RemovedVersion, facts_of
from grace.learner.store import ModelStore
from grace.settings.experiment import MemorySettings
from grace.settings.methods import ReplaySettings
from support.commands import call
from support.learn_calls import files
from support.tiny_streams import SIZE, class_names, labelled, pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def teach(made: Learner, *indices: int) -> None:
    data = labelled(dict.fromkeys(indices, 8))
    made.update(data.images, class_names(data))


@pytest.fixture(scope="module")
def original(tiny_backbones: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions of two, three, four and five classes."""
    home = tmp_path_factory.mktemp("versions") / "model"
    method = ReplaySettings(base=recipe(), update=recipe())
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
            assert "is damaged" in result.stderr or "damaged: 2" in result.stdout
        made.rollback(3)
        assert take_inventory(ModelStore.open(home)).damaged == [2]

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
        used = {r.sha256 for made in store.documents() for r in made.objects.values()}
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
        assert list(keep_within(store, sizes[0] / 1e6)) == []
        assert list(keep_within(store, (sizes[0] - 1) / 1e6)) == [1]
        # The one before the one in use goes last, and the one in use never.
        Learner.load(home).rollback(3)
        assert list(keep_within(store, 1.2 * bytes_of([documents[2], documents[1]]) / 1e6)) == [4]
        assert list(keep_within(store, 0.0)) == [2]
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


class TestAudit:
    def test_all_changes_have_entries(self, home: Path) -> None:
        made = Learner.load(home)
        made.rollback(2)
        made.forget("class 1")
        made.keep_versions(1)
        teach(made, 1, 5)
        facts = json.loads(call("info", home, "--json").stdout)
        told = [
            (c["kind"], c["versions"], c["class_names"], c["was_in_use"]) for c in facts["changes"]
        ]
        assert told == [
            ("rollback", [2], [], 4),
            ("forget", [1, 2, 3, 4], ["class 1"], None),
            ("prune", [1, 3], [], None),
        ]
        assert all(change["date"][:2] == "20" for change in facts["changes"])
        # The update stands before, between or after them: dates have whole seconds.
        text = call("history", home).stdout
        forgot = text.index("forgot class 1 in versions 1, 2, 3, 4")
        assert forgot < text.index("removed versions 1 (class 0, class 1), 3 (class 3)")
        assert made.history[-1].revived_class_names == ("class 1",)

    @pytest.mark.parametrize("how", ["cut", "newer", "link", "folder"])
    def test_a_damaged_log_blocks_nothing_and_is_set_aside(self, home: Path, how: str) -> None:
        made, path = Learner.load(home), home / "changes.json"
        made.rollback(2)
        before = path.read_bytes()
        content = before.replace(b'"format":1', b'"format":2') if how == "newer" else before[:-9]
        path.unlink()
        if how == "link":
            path.symlink_to("/etc/hostname")
        elif how == "folder":
            path.mkdir()
        else:
            path.write_bytes(content)
        refused = call("history", home)
        assert refused.exit_code == 2
        assert "move it away, or restore it from a backup" in refused.stderr
        made.rollback(3)
        assert [change.versions for change in ModelStore.open(home).log.changes()] == [(3,)]
        aside = home / "changes.damaged.1.json"
        assert (aside.is_symlink(), aside.is_dir()) == (how == "link", how == "folder")
        if how in ("cut", "newer"):
            assert aside.read_bytes() == content
        told = call("history", home)
        assert (told.exit_code, told.stderr.count("\n")) == (0, 1)
        assert f"warning: '{aside}' is damaged: changes until then are not listed" in told.stderr
        # Another damaged one does not replace the first.
        path.write_bytes(b"{")
        assert call("prune", home, "--keep", "3").exit_code == 0
        assert (home / "changes.damaged.2.json").read_bytes() == b"{"
        assert os.path.lexists(aside)

    def test_to_learn_what_was_rolled_back_from_is_noted(self, home: Path) -> None:
        made = Learner.load(home)
        made.rollback(3)
        teach(made, 4)
        store = ModelStore.open(home)
        assert (made.version, store.current(), store.numbers()) == (4, 4, [1, 2, 3, 4])
        told = [(change.versions, change.was_in_use) for change in store.log.changes()]
        assert told == [((3,), 4), ((4,), 3)]

    def test_to_finish_an_update_that_was_saved_is_no_rollback(self, home: Path) -> None:
        """The process was killed between the version's document and the pointer."""
        store, made = ModelStore.open(home), Learner.load(home)
        digest = store.document(4).digest
        made.rollback(3)
        (home / "changes.json").unlink()
        (home / "pending").mkdir()
        begun = {"parent": 3, "digest": digest, "number": 4}
        (home / "pending" / "update.json").write_text(json.dumps(begun))
        teach(made, 4)
        assert (made.version, store.current(), list(store.log.changes())) == (4, 4, [])

    def test_a_damaged_unfinished_change_says_what_to_do(self, home: Path) -> None:
        (home / "change.json").write_text("{")
        for arguments in (["prune", home, "--keep", "1"], ["rollback", home, 2], ["info", home]):
            result = call(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert "move it away, and repeat the command that was interrupted" in result.stderr
        assert ModelStore.open(home).numbers() == [1, 2, 3, 4]

    def test_what_was_removed_is_known(self, home: Path) -> None:
        store = ModelStore.open(home)
        before = {made.number: made for made in store.documents()}
        call("prune", home, "--keep", "2")
        call("prune", home, "--max-disk-mb", "0.001")
        first, second = store.log.changes()
        assert first.removed == tuple(RemovedVersion.of(before[n]) for n in (1, 2))
        assert [own.digest for own in second.removed] == [before[3].digest]
        text = (home / "changes.json").read_text()
        assert len(text) < 2000
        # Readers of an earlier grace refuse fields that they do not know.
        Learner.load(home).keep_versions(1)
        made = Learner.load(home)
        teach(made, 5)
        made.rollback(4)
        assert '"rollback"' in (last := (home / "changes.json").read_text())
        assert last.count('"removed"') == 2

    def test_of_a_damaged_version_there_are_no_facts(self, home: Path) -> None:
        spoil(home, 2, "cut")
        call("prune", home, "--keep", "1")
        (change,) = ModelStore.open(home).log.changes()
        assert change.versions == (1, 2, 3)
        assert [own.number for own in change.removed] == [1, 3]
        told = json.loads(call("history", home, "--json").stdout)
        assert [own["version"] for own in told[:4]] == [1, None, 3, 4]

    def test_a_killed_prune_keeps_the_facts(self, home: Path) -> None:
        store = ModelStore.open(home)
        gone = [made for made in store.documents() if made.number < 3]
        change = Change.now("prune", [1, 2], removed=facts_of(gone))
        store.log.begin(change)
        store.drop(1)
        again = call("prune", home, "--keep", "2")
        assert "finished what was interrupted: versions 1, 2 removed" in again.stdout
        assert store.numbers() == [3, 4]
        assert list(store.log.changes()) == [change]

    def test_many_versions_and_long_names_stay_bounded(self, home: Path) -> None:
        (*_, last) = ModelStore.open(home).documents()
        names = tuple(f"{i:03d}{'x' * 250}" for i in range(1000))
        update = last.history[-1].model_copy(update={"new_class_names": names})
        made = [
            last.model_copy(update={"number": n + 1, "history": (update,)})
            for n in range(MAX_VERSIONS + 50)
        ]
        facts = facts_of(made)
        assert [own.number for own in facts] == list(range(51, MAX_VERSIONS + 51))
        assert [len(own.new_class_names) for own in facts[-3:]] == [0, 1000, 1000]
        assert {own.num_new_classes for own in facts} == {1000}
        log = ChangeLog(home)
        change = Change.now("prune", [own.number for own in made], removed=facts)
        log.begin(change)
        assert log.unfinished() == change
        for day in range(1, 10):
            log.end(change.model_copy(update={"date": f"2026-01-0{day}"}))
        kept = [each.date for each in log.changes()]
        assert (home / "changes.json").stat().st_size < 1 << 23
        # The oldest are dropped first.
        assert 1 < len(kept) < 9
        assert kept == [f"2026-01-0{day}" for day in range(10 - len(kept), 10)]

    @pytest.mark.parametrize(
        ("kind", "versions", "says"),
        [
            ("rollback", [1], "only prune tells of removed versions"),
            ("prune", [2], "tells of versions that it did not remove"),
        ],
    )
    def test_facts_that_contradict_are_refused(
        self, kind: Literal["rollback", "prune"], versions: list[int], says: str, home: Path
    ) -> None:
        facts = facts_of(ModelStore.open(home).documents()[:1])
        with pytest.raises(ValueError, match=says):
            Change.now(kind, versions, removed=facts)


class TestNumbers:
    """A number is given once: the history would else tell of two versions of one number."""

    def test_a_pruned_number_is_not_given_again(self, home: Path) -> None:
        made = Learner.load(home)
        made.rollback(3)
        made.keep_versions(1)
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
        updates = [own["version"] for own in told if own["kind"] == "update"]
        assert updates == [1, 2, 3, 7]
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
        (home / "changes.json").write_text(json.dumps({"format": 1, "changes": [forged]}))
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

    def test_a_purge_of_an_earlier_grace_is_finished(self, home: Path) -> None:
        (home / "purge.json").write_text('{"class": "class 1"}\n')
        result = call("info", home)
        assert "'grace forget' was interrupted: run it again to finish it." in result.stdout
        result = call("forget", home, "class 1", "--yes")
        assert result.stdout.startswith("finished what was interrupted")
        assert not (home / "purge.json").exists()
        assert all(1 in document.forgotten for document in ModelStore.open(home).documents())

    def test_an_unfinished_forget_does_not_block_rolling_back(self, home: Path) -> None:
        (home / "purge.json").write_text('{"class": "class 1"}\n')
        spoil(home, 4, "cut")
        store = ModelStore.open(home)
        with pytest.raises(DamagedError, match=r"0004\.json"):
            Learner.load(home)
        Learner.load(home, 3).rollback(3)
        assert (store.current(), store.numbers()) == (3, [1, 2, 3])
        assert all(1 in document.forgotten for document in store.documents())
        assert [change.kind for change in store.log.changes()] == ["rollback", "forget"]
        assert store.log.unfinished() is None
