"""Homes of learners beside other processes, on bad disks, and with links in them."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from grace.base import atomic
from grace.base.atomic import ObjectStore
from grace.base.errors import BusyError, DamagedError, GraceError
from grace.base.lock import exclusive
from grace.learner.call import remove_empty
from grace.learner.document import Creation
from grace.learner.inventory import facts
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from grace.settings.experiment import ExperimentSettings
from support.learn_calls import files
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
    with pytest.raises(GraceError, match="is another learner now"):
        teach(mine)
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


def teach(made: Learner) -> None:
    data = labelled({4: 8})
    made.update(data.images, class_names(data))


def update(home: Path) -> Learner:
    learner = Learner.load(home)
    teach(learner)
    return learner


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
    other = Learner.load(home)

    def learn_and_prune() -> None:
        teach(other)
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


def test_a_linked_folder_of_versions_is_no_place_for_a_new_learner(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "versions").symlink_to(tmp_path / "outside")
    with pytest.raises(DamagedError, match=r"versions' is a link, and links are not followed"):
        ModelStore.create(tmp_path / "model", creation())
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("name", ["versions", "pending"])
def test_a_folder_that_becomes_a_link_is_not_written_through(
    name: str, home: Path, tmp_path: Path
) -> None:
    other, made = Path(shutil.copytree(home, tmp_path / "others")), Learner.load(home)
    (other / "pending").mkdir()
    shutil.rmtree(home / name, ignore_errors=True)
    (home / name).symlink_to(other / name)
    before = files(other)
    for change in (
        lambda: made.keep_within(0),
        lambda: made.forget("class 1"),
        lambda: teach(made),
    ):
        with pytest.raises(DamagedError, match="is a link"):
            change()
    assert files(other) == before


PROBE = labelled({0: 3, 1: 3, 2: 3}, seed=1).images


def in_use(home: Path) -> dict[str, bytes]:
    """What the version in use consists of; objects of an unfinished update may lie beside."""
    files = [path for path in home.rglob("*") if path.is_file() and "pending" not in path.parts]
    return {str(path): path.read_bytes() for path in files if path.name != "lock"}


def test_at_whatever_write_the_disk_is_full_the_update_goes_on_later(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home, tmp_path / "straight")
    straight = update(tmp_path / "straight").predict_proba(PROBE)
    write, left = atomic.write_bytes, 0

    def full_once(path: Path, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    monkeypatch.setattr(atomic, "write_bytes", full_once)
    for number in count(1):
        copy = Path(shutil.copytree(home, tmp_path / f"copy{number}"))
        before, left = in_use(copy), number
        try:
            learner, failed = update(copy), False
        except OSError as error:
            failed = error.errno == errno.ENOSPC
            after = in_use(copy)
            assert failed
            # But for the pointer, nothing that was there is another.
            assert {n for n in before if before[n] != after.get(n)} <= {str(copy / "current.json")}
            learner = Learner.load(copy)
            if learner.version == 3:
                teach(learner)
        assert torch.equal(learner.predict_proba(PROBE), straight)
        if not failed:
            break
    assert number > 8


def test_a_read_only_model_can_be_asked_but_not_changed(home: Path) -> None:
    straight = Learner.load(home).predict_proba(PROBE)
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        model = Path(shutil.copytree(home, Path(open_to_all) / "model"))
        before = in_use(model)
        for path in (model, *model.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        # Root may write anything: a child process gives that up.
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if os.geteuid() == 0:
                    os.setresuid(65534, 65534, 65534)
                asked = Learner.load(model)
                assert torch.equal(asked.predict_proba(PROBE), straight)
                try:
                    teach(asked)
                except PermissionError:
                    code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert in_use(model) == before
        for path in (model, *(path for path in model.rglob("*") if path.is_dir())):
            path.chmod(0o755)
