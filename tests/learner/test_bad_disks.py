"""Disks that are full or read-only: a named error, and never a changed model."""

import errno
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest
import torch

from grace.base import atomic
from grace.learner.learner import Learner
from grace.methods.grace import Grace
from grace.settings.experiment import MemorySettings
from support import tiny_streams as ts

pytestmark = pytest.mark.usefixtures("tiny_backbones")

FIRST = ts.labelled({0: 10, 1: 10})
SECOND = ts.labelled({2: 10})
PROBE = ts.labelled({0: 3, 1: 3, 2: 3}, seed=1).images


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A learner after its first update."""
    method = Grace.Settings(base=ts.recipe(), grow=ts.recipe(), compress=ts.recipe())
    settings = ts.settings(method, memory=MemorySettings(size=8, validation=2))
    learner = Learner.create(settings, shape=(3, 8, 8), directory=tmp_path / "model")
    learner.update(FIRST.images, ts.class_names(FIRST))
    return tmp_path / "model"


def update(home: Path) -> Learner:
    """Teach the second class."""
    learner = Learner.load(home)
    learner.update(SECOND.images, ts.class_names(SECOND))
    return learner


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
            if learner.version == 1:
                learner.update(SECOND.images, ts.class_names(SECOND))
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
                    asked.update(SECOND.images, ts.class_names(SECOND))
                except PermissionError:
                    code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert in_use(model) == before
        for path in (model, *(path for path in model.rglob("*") if path.is_dir())):
            path.chmod(0o755)
