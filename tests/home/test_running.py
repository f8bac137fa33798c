"""What ``grace info`` says while an update runs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grace.base import tensors
from grace.base.lock import holder
from grace.engine.journal import Journal
from grace.engine.phase import Work
from grace.learner.learner import Learner
from grace.learner.running import running_update
from grace.learner.store import ModelStore
from grace.settings.methods import ReplaySettings
from support.commands import call
from support.tiny_streams import class_names, labelled, recipe, settings, watch
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def test_it_names_the_work_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal.__init__, "__defaults__", (0.0, 0.0))
    home, said = tmp_path / "model", list[Any]()
    method = ReplaySettings(base=recipe(2), update=recipe(2))
    learner = Learner.create(settings(method), shape=(3, 8, 8), directory=home)
    assert running_update(home) is None

    def ask(_: Work) -> None:
        said.append(running_update(home))
        said.append(call("info", home).stdout.splitlines()[1])

    watch(learner, ask)
    data = labelled({0: 10, 1: 10})
    learner.update(data.images, class_names(data))
    assert said[0].work == ""
    assert said[1].startswith("An update is running (process ")
    # When the first sweep begins, the phase before it is saved.
    assert (said[2].work, said[2].epochs, said[2].num_saved) == ("base", (2, 2), 1)
    assert ": base, epoch 2 of 2, as saved at " in said[3]
    assert running_update(home) is None
    assert json.loads(call("info", home, "--json").stdout)["running_update"] is None


def test_an_interrupted_update_does_not_run(tmp_path: Path) -> None:
    home = tmp_path / "model"
    learner = Learner.create(settings(ReplaySettings()), shape=(3, 8, 8), directory=home)
    assert learner.home is not None
    with ModelStore.open(home).changing():
        learner.home.begin(None, "0" * 64)
        assert holder(home / "lock") is not None
        assert running_update(home) is not None
    assert holder(home / "lock") is None
    assert running_update(home) is None
    assert call("info", home).stdout.splitlines()[1].startswith("An update was interrupted")


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "base", "phases": []},
        {"name": "base", "phases": {}, "snapshot": {"epochs": 1}},
        {"name": "base", "snapshot": {"epochs": 1e300}, "recipe": {"epochs": {}}},
        ["base"],
        3,
    ],
)
def test_a_forged_entry_is_not_described(tmp_path: Path, entry: object) -> None:
    home = tmp_path / "model"
    learner = Learner.create(settings(ReplaySettings()), shape=(3, 8, 8), directory=home)
    assert learner.home is not None
    with learner.home.changing():
        learner.home.begin(None, "0" * 64)
        forged = home / "pending" / "0000.safetensors"
        forged.write_bytes(tensors.encode({}, {"entry": json.dumps(entry)}))
        found = running_update(home)
        assert (found.num_saved, found.work) == (1, "")
        forged.write_bytes(tensors.encode({}, {"entry": json.dumps({"name": "base" * 10**5})}))
        os.utime(forged, (1, 10**12))
        long = running_update(home)
        assert len(long.work) < 100
        assert call("info", home).exit_code == 0
