"""Several processes at one learner: creating, reading beside changes, and the lock."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from grace.base.atomic import ObjectStore
from grace.base.errors import BusyError, GraceError
from grace.base.lock import exclusive
from grace.learner.call import remove_empty
from grace.learner.document import Creation
from grace.learner.inventory import facts
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from grace.settings.experiment import ExperimentSettings
from support.saved_learners import three_versions
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def creation(name: str = "") -> Creation:
    settings = ExperimentSettings(description=name)
    return Creation.of(settings, (3, 8, 8), (0.5,) * 3, (0.5,) * 3)


def test_of_two_that_create_a_learner_one_succeeds(tmp_path: Path) -> None:
    """Both would succeed in one of ten trials, and one's settings would lie over the other's."""
    for trial in range(40):
        path, together = tmp_path / str(trial), Barrier(2)

        def create(name: str, path: Path = path, together: Barrier = together) -> str:
            together.wait()
            with suppress(GraceError):
                return ModelStore.create(path, creation(name)).creation.settings.description
            return ""

        with ThreadPoolExecutor() as pool:
            (winner,) = filter(None, pool.map(create, ("one", "two")))
        assert ModelStore.open(path).creation.settings.description == winner


def test_a_learner_that_was_replaced_is_not_changed(tmp_path: Path) -> None:
    """Another process found it empty, removed it, and made its own."""

    def create(seed: int) -> Learner:
        chosen = settings(Replay.Settings(base=recipe(), update=recipe()), description=str(seed))
        return Learner.create(chosen, shape=(3, SIZE, SIZE), directory=tmp_path / "model")

    mine = create(1)
    remove_empty(ModelStore.open(tmp_path / "model"))
    create(2)
    data = labelled({0: 8, 1: 8})
    with pytest.raises(GraceError, match="is another learner now"):
        mine.update(data.images, class_names(data))
    assert ModelStore.open(tmp_path / "model").numbers() == []


def test_creation_waits_for_nobody(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with exclusive(tmp_path / "model" / "lock", "it"), pytest.raises(BusyError):
        ModelStore.create(tmp_path / "model", creation())
    # What an interrupted creation leaves is taken over.
    assert ModelStore.create(tmp_path / "model", creation()).numbers() == []


@pytest.fixture(scope="module")
def original(tiny_backbones: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions of two, three and four classes."""
    return three_versions(tmp_path_factory.mktemp("readers") / "model")


@pytest.fixture
def home(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


def change_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[[], object]
) -> list[str]:
    """Let another process change the home just before a reader's next step."""
    method, done = getattr(owner, name), []

    def changed(*arguments: Any) -> Any:
        if not done:
            done.append(name)
            change()
        return method(*arguments)

    monkeypatch.setattr(owner, name, changed)
    return done


@pytest.mark.parametrize("step", [(ObjectStore, "get"), (ModelStore, "outline")])
@pytest.mark.parametrize("version", [None, 2])
def test_a_reader_beside_forget(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], version: int | None
) -> None:
    other = Learner.load(home)
    # Of version 2 the calibration and the images of the class are gone when they are read.
    done = change_once(monkeypatch, *step, lambda: other.forget("class 1"))
    assert (Learner.load(home, version).forgotten, len(done)) == ({1}, 1)


def test_readers_beside_prune(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, data = Learner.load(home), labelled({4: 8})

    def learn_and_prune() -> None:
        other.update(data.images, class_names(data))
        other.keep_within(0)

    with monkeypatch.context() as patch:
        change_once(patch, ModelStore, "document", learn_and_prune)
        assert Learner.load(home).version == 4
    other.change_settings("memory.size=10")
    change_once(monkeypatch, ModelStore, "document", lambda: other.keep_within(0))
    assert facts(ModelStore.open(home))["versions"] == [5]


def test_what_is_damaged_is_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (home / "objects").iterdir():
        path.write_bytes(b"")
    read: list[int] = []
    monkeypatch.setattr(ModelStore, "current", lambda _: read.append(1) or 3)
    with pytest.raises(GraceError, match="is damaged"):
        Learner.load(home)
    assert len(read) == 1
