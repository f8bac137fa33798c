"""Versions of a learner, damaged and pruned ones too, and the history that tells of them."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from grace.base.errors import DamagedError
from grace.base.tensors import encode
from grace.engine.work import Seconds, WorkDone
from grace.learner.document import UpdateRecord
from grace.learner.history import Change
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


def spoil(path: Path, how: str) -> None:
    """Put something else in the place of a file."""
    data = path.read_bytes()
    path.unlink()
    match how:
        case "cut":
            path.write_bytes(data[:-9])
        case "link":
            path.symlink_to("/etc/hostname")
        case "folder":
            path.mkdir()
            (path / "x").touch()
        case "huge":
            path.touch()
            os.truncate(path, 1 << 40)


def version(home: Path, number: int) -> Path:
    return home / "versions" / f"{number:04d}.json"


@pytest.mark.parametrize("how", ["cut", "link", "folder", "huge"])
class TestDamaged:
    def test_an_old_version_blocks_nothing(self, home: Path, how: str) -> None:
        spoil(version(home, 2), how)
        made, store = Learner.load(home), ModelStore.open(home)
        teach(made, 5)
        assert made.version == 5
        assert "is damaged" in call("history", home).stderr
        made.rollback(3)
        assert json.loads(call("info", home, "--json").stdout)["damaged_versions"] == [2]
        # It cannot be masked: forgetting removes it, and so does pruning.
        result = call("forget", home, "class 1", "--yes")
        assert "removed version 2, which cannot be read" in result.stdout
        assert store.numbers() == [1, 3, 4, 5]
        assert all(1 in document.forgotten for document in store.survey().documents)
        kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        assert not any(image.numpy().tobytes() in d for image in pictures(1, 8) for d in kept)
        spoil(version(home, 5), how)
        # The number of one that is gone is not given again.
        assert (store.prune(keep=4), store.numbers()) == ([5], [1, 3, 4])
        assert store.next_number() == 6

    def test_the_version_in_use_still_counts(self, home: Path, how: str) -> None:
        spoil(version(home, 4), how)
        for arguments in (["info", home], ["history", home], ["forget", home, "class 1", "--yes"]):
            result = call(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
        assert (call("rollback", home, 3).exit_code, call("info", home).exit_code) == (0, 0)

    def test_a_history_blocks_nothing(self, home: Path, how: str) -> None:
        made, path = Learner.load(home), home / "history.jsonl"
        made.rollback(2)
        spoil(path, how)
        refused = call("history", home)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert "move it away, or restore it from a backup" in refused.stderr
        shown = call("info", home)
        assert (shown.exit_code, shown.stdout.count("history.jsonl")) == (0, 1)
        made.rollback(3)
        readable = [own.kind for own in ModelStore.open(home).log.readable()]
        assert (readable.count("learn"), readable[-1]) == (4, "rollback")
        assert os.path.lexists(home / "history.damaged.1.jsonl") == (how != "cut")


class TestPrune:
    def test_a_number_that_somebody_made_up_is_removed(self, home: Path) -> None:
        version(home, 10**20 - 1).touch()
        assert ModelStore.open(home).prune(keep=5) == [10**20 - 1]

    def test_the_newest_stay(self, home: Path) -> None:
        before = Learner.load(home).predict_proba(pictures(0, 3))
        result = call("prune", home, "--keep", "2")
        assert result.stdout.startswith(f"removed versions 1, 2 of '{home}': ")
        store = ModelStore.open(home)
        assert store.numbers() == [3, 4]
        used = {r.sha256 for made in store.survey().documents for r in made.refs}
        assert {path.stem for path in (home / "objects").iterdir()} == used
        assert torch.equal(Learner.load(home).predict_proba(pictures(0, 3)), before)
        before_files = files(home)
        assert "has no version to remove: nothing" in call("prune", home, "--keep", "2").stdout
        assert files(home).keys() == before_files.keys()

    def test_what_is_needed_stays(self, home: Path) -> None:
        store = ModelStore.open(home)
        with store.changing():
            store.begin(3, "0" * 64)
        Learner.load(home).rollback(2)
        assert (store.prune(keep=1), store.prune(keep=0), store.numbers()) == ([1], [4], [2, 3])
        # The update goes on although the newest version is gone, whose number is not given again.
        with store.changing():
            store.begin(3, "0" * 64)
            with pytest.raises(ValueError, match="with other images or settings was interrupted"):
                store.begin(3, "1" * 64)
        assert json.loads((home / "pending" / "update.json").read_text())["number"] == 5
        store.discard()
        assert (store.prune(keep=0), store.numbers()) == ([3], [2])

    def test_a_ceiling_takes_the_oldest_first(self, home: Path) -> None:
        store = ModelStore.open(home)
        documents = store.survey().documents
        sizes = [bytes_of(documents[first:]) for first in range(4)]
        assert sizes == sorted(sizes, reverse=True)
        assert store.prune(max_mb=sizes[0] / 1e6) == []
        assert store.prune(max_mb=(sizes[0] - 1) / 1e6) == [1]
        # The one before the one in use goes last, and the one in use never.
        Learner.load(home).rollback(3)
        assert store.prune(max_mb=1.2 * bytes_of([documents[2], documents[1]]) / 1e6) == [4]
        assert (store.prune(max_mb=0.0), store.numbers()) == ([2], [3])
        for wrong in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="give a number of megabytes"):
                store.prune(max_mb=wrong)
        result = call("prune", home, "--max-disk-mb", "0.001")
        # What was asked for is done in part.
        assert result.exit_code == 1
        assert result.stderr == (
            "warning: the version in use alone takes more than the 0.001 MB asked for\n"
        )


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
        # What was removed has its row still, and its number is never given again.
        rows = [r for r in json.loads(call("history", home, "--json").stdout) if "removed" in r]
        assert [(row["version"], row["removed"], row["in_use"]) for row in rows] == [
            *((number, number != 2, False) for number in (1, 2, 3, 4)),
            (5, False, False),
            (6, False, True),
        ]
        assert [row["num_classes"] for row in rows] == [2, 3, 4, 5, 3, 4]
        assert rows[4]["digest"] == rows[1]["digest"]

    def test_it_stays_bounded(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("grace.learner.history.MAX_BYTES", 4000)
        made = Learner.load(home)
        for number in (1, 2, 3, 4) * 3:
            made.rollback(number)
        assert (home / "history.jsonl").stat().st_size <= 4000
        assert ModelStore.open(home).log.changes()[-1].version == 4

    def test_a_damaged_unfinished_change_says_what_to_do(self, home: Path) -> None:
        (home / "change.json").write_text("{")
        for arguments in (["prune", home, "--keep", "1"], ["rollback", home, 2], ["info", home]):
            result = call(*arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert "move it away, and repeat the command that was interrupted" in result.stderr
        assert ModelStore.open(home).numbers() == [1, 2, 3, 4]

    def test_an_unfinished_forget_waits_for_a_rollback(self, home: Path) -> None:
        store, begun = ModelStore.open(home), Change(kind="forget", date="", class_name="class 1")
        store.log.begin(begun)
        spoil(version(home, 4), "cut")
        with pytest.MonkeyPatch.context() as patch, store.changing():
            patch.setattr(ModelStore, "survey", None)
            with pytest.raises(TypeError):
                store.roll_back(3)  # It is cut off there.
        assert store.log.unfinished() == begun
        Learner.load(home, 2).rollback(2)
        assert all("class 1" not in made.live_class_names for made in store.survey().documents)
        assert store.log.unfinished() is None

    def test_lines_that_say_nothing_are_refused(self, home: Path) -> None:
        lines = (home / "history.jsonl").read_text()
        for kind in ("forget", "rollback", "learn", "erase"):
            (home / "history.jsonl").write_text(f'{lines}{{"kind":"{kind}","date":"2026"}}\n')
            with pytest.raises(DamagedError, match="line 5 of"):
                ModelStore.open(home).log.changes()

    def test_a_learner_that_was_saved_later_tells_all_its_updates(self, tmp_path: Path) -> None:
        method, path = Replay.Settings(base=recipe(), update=recipe()), tmp_path / "late"
        made = Learner.create(settings(method), shape=(3, SIZE, SIZE))
        for indices in ((0, 1), (2,)):
            teach(made, *indices)
        made.save(path)
        first, last = ModelStore.open(path).history()
        assert (first.version, first.num_bytes, last.version) == (None, None, 1)
        stored = [*(path / "objects").iterdir(), path / "versions" / "0001.json"]
        assert last.num_bytes == sum(file.stat().st_size for file in stored)


def test_what_a_finished_update_left_is_removed(home: Path) -> None:
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
        assert not store.has_saved("0" * 64)


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def stored(home: Path, refs: list[dict[str, str]]) -> int:
    paths = [home / "objects" / f"{ref['sha256']}.safetensors" for ref in refs]
    return sum(path.stat().st_size for path in paths)


def test_sizes_are_those_of_the_files(saved: Path) -> None:
    found = facts(ModelStore.open(saved))
    assert found["num_bytes_of_all_versions"] == size(saved / "objects") + size(saved / "versions")
    path = saved / "versions" / "0005.json"
    document, sizes = json.loads(path.read_text()), found["in_use"]["num_bytes"]
    scores = [document["calibration"]] if document["calibration"] else []
    kinds = {
        "weights_and_method_state": stored(saved, list(document["parts"].values())),
        "exemplars": stored(saved, list(document["exemplars"].values())),
        "held_out_images": stored(saved, [*document["validation"].values(), *scores]),
        "document": path.stat().st_size,
    }
    assert sizes == {**kinds, "total": sum(kinds.values()), "ceiling": 2_000_000}


def test_versions_and_classes_are_those_of_the_learner(saved: Path) -> None:
    found, learner = facts(ModelStore.open(saved)), Learner.load(saved)
    assert (found["versions"], found["rejected_versions"]) == ([1, 2, 3, 4, 5], [4])
    assert (found["interrupted_update"], found["running_update"]) == (False, None)
    own, memory = found["in_use"], learner.method.memory
    assert (own["version"], own["num_updates"], own["num_backbones"]) == (5, 4, 2)
    assert own["saturation"] == learner.history[-1].outcome.saturation is not None
    names = ["apple", "Käse", "cat", "dog", "fox"]
    kept = [(len(memory.of_class(i)), learner.model.state.held_out.count(i)) for i in range(5)]
    assert kept[2] == (0, 0) < kept[0]
    told = [[*row.values()] for row in own["classes"]]
    assert told == [[i, name, name == "cat", *kept[i]] for i, name in enumerate(names)]


def test_what_two_classes_share_is_counted_once(tmp_path: Path) -> None:
    method = Replay.Settings(base=recipe(), update=recipe())
    memory = MemorySettings(size=20)
    path = tmp_path / "twins"
    made = Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE), directory=path)
    # Both classes keep all of their images, which are the same ones.
    images = labelled({0: 1}).images.gather(torch.tensor([0]))
    made.update(torch.cat([images, images]), ["cat", "dog"])
    own = facts(ModelStore.open(path))["in_use"]
    assert own["saturation"] is None
    assert [row["num_exemplars"] for row in own["classes"]] == [1, 1]
    assert own["num_bytes"]["exemplars"] == len(encode({"images": images}))
    assert own["num_bytes"]["total"] == size(path / "objects") + size(path / "versions")


def test_the_seconds_of_interrupted_processes_count() -> None:
    times = (Seconds(total=5.0, earlier=5.0), Seconds(total=4.0, earlier=1.5))
    work = tuple(WorkDone("grow", 2, 10, seconds=own) for own in times)
    outcome = Outcome(verdict="start")
    update = UpdateRecord(task=1, new_class_names=(), outcome=outcome, work=work, seconds=3.0)
    assert update.all_seconds == update.past.seconds == update.past.past.all_seconds == 9.5
