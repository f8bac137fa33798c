"""The path of a run: short, and past the product; what it keeps makes a learner."""

import os
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import grace
from grace.base.errors import DamagedError, GraceError
from grace.cli.app import app
from grace.learner.learner import Learner
from grace.methods.foster import Foster
from grace.methods.grace import Grace
from grace.methods.probe import Probe
from grace.methods.replay import Replay
from grace.runs.run import run as run_experiment
from support.tiny_streams import class_names, dataset, labelled, recipe, same, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

SOURCE = Path(grace.__file__).parent
IMAGES = dataset(4, train=8, test=4)
GRACE = Grace.Settings(base=recipe(2), grow=recipe(2), compress=recipe(2))


class Reached(BaseException):
    """The first backward pass."""


def test_few_frames_lie_between_the_command_and_the_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[tuple[str, str]] = []

    def backward(*_: Any, **__: Any) -> None:
        frames.extend(
            (str(Path(frame.filename).relative_to(SOURCE)), frame.name)
            for frame in traceback.extract_stack()
            if Path(frame.filename).is_relative_to(SOURCE)
        )
        raise Reached

    monkeypatch.setattr(Tensor, "backward", backward)
    threads = torch.get_num_threads()
    with pytest.raises(Reached):
        CliRunner().invoke(
            app,
            ["run", "digits", "data.max_train_per_class=2", "--out", str(tmp_path / "run")],
            catch_exceptions=False,
        )
    torch.set_num_threads(threads)
    assert len(frames) <= 12, frames
    assert len({file for file, _ in frames}) <= 8, frames
    assert not [file for file, _ in frames if file.startswith("learner")]


@pytest.mark.usefixtures("tiny_backbones")
class TestKeptState:
    @pytest.mark.parametrize(
        "method",
        [
            GRACE,
            Foster.Settings(base=recipe(2), boost=recipe(1), compress=recipe(1)),
            Probe.Settings(),
        ],
        ids=lambda method: method.name,
    )
    def test_a_learner_of_a_run_predicts_as_it_and_learns_on(
        self, method: Any, tmp_path: Path
    ) -> None:
        chosen = settings(method)
        record = run_experiment(chosen, directory=tmp_path / "run", dataset=IMAGES, keep=True)
        made = Learner.from_run(record.directory)
        assert made.class_names == list(record.info.class_names)
        last = record.tasks[-1]
        assert made.size().num_parameters == last.parameters.total
        order = [int(name.removeprefix("label ")) for name in made.class_names]
        test = torch.cat([IMAGES.test.of_class(label).images.pixels for label in order])
        found = made.scores(test)
        labels = torch.arange(4).repeat_interleave(4)
        right = (found[last.primary or ""].argmax(dim=1) == labels).double().mean()
        assert 100 * float(right) == pytest.approx(last.classifiers[last.primary or ""].all)
        made.save(tmp_path / "home")
        assert same(Learner.load(tmp_path / "home").scores(test), found)
        more = labelled({4: 8})
        update = made.update(more.images, class_names(more))
        assert (update.task, update.new_class_names) == (3, ("class 4",))

    def test_a_state_that_is_missing_or_altered_is_refused_in_one_line(
        self, tmp_path: Path
    ) -> None:
        method = Replay.Settings(base=recipe(1), update=recipe(1))
        run_experiment(settings(method), directory=tmp_path / "run", dataset=IMAGES, keep=True)
        path = tmp_path / "run" / "state.safetensors"
        data = bytearray(path.read_bytes())
        for place in (3, 200, len(data) // 2, len(data) - 1):
            spoilt = bytearray(data)
            spoilt[place] ^= 1
            path.write_bytes(spoilt)
            with pytest.raises(DamagedError) as caught:
                Learner.from_run(tmp_path / "run")
            assert "\n" not in str(caught.value)
        path.write_bytes(data[:100])
        os.truncate(path, 5 * 10**9)
        with pytest.raises(DamagedError):  # A hole of 5 GB: only its header is read.
            Learner.from_run(tmp_path / "run")
        path.unlink()
        with pytest.raises(GraceError, match="run it with --keep"):
            Learner.from_run(tmp_path / "run")
