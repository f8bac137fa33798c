"""Nothing inside the directories of runs and comparisons is followed or written through."""

import os
import shutil
from pathlib import Path

import pytest

from grace.base.errors import DamagedError, GraceError
from grace.base.files import open_to_append, refuse_path
from grace.engine.trainer import Trainer
from grace.methods.replay import Replay
from grace.runs.run import run as run_experiment
from grace.settings.experiment import ScenarioSettings
from grace.studies.study import compare
from support.interruptions import interrupted
from support.learn_calls import files
from support.saved_learners import three_versions
from support.tiny_streams import dataset, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

REPLAY = Replay.Settings(base=recipe(), update=recipe())


def test_a_linked_checkpoint_of_a_run_is_not_another_learner(tmp_path: Path) -> None:
    """Its versions were pruned, and it was removed in the end."""
    other, run = three_versions(tmp_path / "others"), tmp_path / "run"
    chosen = settings(REPLAY, scenario=ScenarioSettings(base=2, increment=1))
    images = dataset(3, train=6, test=4)
    with interrupted(Trainer, "optimise", lambda _, phase, *__: phase.name == "update"):
        run_experiment(chosen, directory=run, dataset=images)
    shutil.rmtree(run / "checkpoint")
    (run / "checkpoint").symlink_to(other)
    before = files(other)
    with pytest.raises(DamagedError, match="checkpoint' is a link"):
        run_experiment(chosen, directory=run, dataset=images, resume=True)
    assert files(other) == before


@pytest.mark.parametrize("name", ["cells", "logs", "runs", "first-tasks"])
def test_linked_folders_of_a_comparison_are_refused(name: str, tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (out / "runs").mkdir(parents=True)
    (out / "lock").touch()
    if name == "runs":
        (out / "runs").rmdir()
    (out / name).symlink_to(outside)
    few = ["data.max_train_per_class=4"]
    with pytest.raises(DamagedError, match="is a link, and links are not followed"):
        compare("digits", few, methods=["replay"], seeds=[1], directory=out)
    assert list(outside.iterdir()) == []


def test_a_linked_log_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("mine")
    (tmp_path / "log").symlink_to(tmp_path / "diary")
    with pytest.raises(DamagedError, match="is a link"):
        open_to_append(tmp_path / "log")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((DamagedError, OSError)):
        open_to_append(tmp_path / "pipe")
    assert (tmp_path / "diary").read_text() == "mine"
    with open_to_append(tmp_path / "new") as log:
        log.write(b"line")
    assert (tmp_path / "new").read_bytes() == b"line"


def test_names_that_are_paths_are_refused() -> None:
    for name in ("..", ".", "", "a/b", "/a", "a\\b", "../x"):
        with pytest.raises(GraceError, match="is a path, and a folder is named after it"):
            refuse_path(name, "the experiment's name")
    assert refuse_path("my.study-2", "the experiment's name") == "my.study-2"
