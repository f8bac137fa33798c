"""Trials of what is faster: made once, remembered, and taken over by the run that goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import pytest
import torch

from grace.engine.trainer import Trainer
from grace.learner import trials
from grace.learner.model import Model
from grace.runs import RunRecord, read_record
from grace.runs.run import run_experiment
from grace.settings.experiment import EngineSettings
from grace.settings.methods import FinetuneSettings
from support.tiny_streams import dataset, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

IMAGES = dataset(4, train=6, test=2)
METHOD = FinetuneSettings(base=recipe(2), update=recipe(1))
AUTO = EngineSettings(device="cpu")


@final
class Clock:
    """Gives each trial the speed that stands for its settings, and counts the trials."""

    def __init__(self) -> None:
        self.one_thread, self.compiled, self.num_trials = 1.0, 1.0, 0

    def measure(self, method: object, trainer: Trainer, shape: object) -> float:
        self.num_trials += 1
        is_single = torch.get_num_threads() == 1
        return (self.one_thread if is_single else 1.0) * (
            self.compiled if trainer.device.compile is True else 1.0
        )


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Two threads, a compiler, phases that are all long, and an empty cache."""
    clock, before = Clock(), torch.get_num_threads()
    monkeypatch.setattr(trials, "measure_speed", clock.measure)
    monkeypatch.setattr(trials, "FOLDER", str(tmp_path / "cache" / "trials"))
    monkeypatch.setattr(trials, "can_compile", lambda device: True)
    monkeypatch.setattr(trials, "is_long", lambda *_: True)
    torch.set_num_threads(2)
    yield clock
    torch.set_num_threads(before)


def chosen(engine: EngineSettings = AUTO, side: int = 8) -> tuple[bool | str, int | None]:
    """What is chosen for images of a size: compilation and threads."""
    asked = settings(METHOD, engine=engine)
    model = Model(asked, (3, side, side), (0.4,) * 3, (0.3,) * 3)
    found = trials.fastest_engine(asked, model, 24)
    return found.compile, found.threads


@pytest.mark.parametrize(
    ("one_thread", "compiled", "expected"),
    [(1.0, 1.0, (False, 1)), (0.9, 1.04, (False, None)), (1.2, 1.06, ("auto", 1))],
)
def test_what_gains_less_than_a_twentieth_is_left(
    clock: Clock, one_thread: float, compiled: float, expected: tuple[Any, Any]
) -> None:
    clock.one_thread, clock.compiled = one_thread, compiled
    assert chosen() == expected
    assert torch.get_num_threads() == 2
    # The second call reads what the first one wrote, whatever would be measured now.
    clock.one_thread, clock.compiled, tried = 0.1, 9.0, clock.num_trials
    assert chosen() == expected
    assert clock.num_trials == tried == 4


def test_nothing_is_tried_that_is_settled(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(EngineSettings(device="cpu", threads=2, compile=True)) == (True, 2)
    monkeypatch.setattr(trials, "is_long", lambda *_: False)
    assert chosen(side=32) == ("auto", None)
    torch.set_num_threads(1)
    assert chosen() == ("auto", None)
    monkeypatch.setattr(trials, "is_long", lambda *_: True)
    monkeypatch.setattr(trials, "can_compile", lambda device: False)
    assert chosen() == ("auto", None)
    assert clock.num_trials == 0


def test_a_damaged_outcome_is_replaced(clock: Clock) -> None:
    chosen()
    files = sorted(Path(trials.FOLDER).iterdir())
    assert [path.name.partition("-")[0] for path in files] == ["compile", "threads"]
    for damage in (b"", b'{"gain": "2"}', b"[1.5]", b'{"gain": NaN}', b" " * 5000):
        for path in files:
            path.write_bytes(damage)
        assert chosen() == (False, 1)
        assert [path.read_bytes() for path in files] == [b'{"gain":1.0}\n'] * 2
    assert sorted(Path(trials.FOLDER).iterdir()) == files


def test_the_first_outcome_wins(clock: Clock) -> None:
    """Two runs that try at the same time choose the same."""

    def slower() -> float:
        assert trials._remembered("twice.json", lambda: 1.5) == 1.5
        return 2.5

    assert trials._remembered("twice.json", slower) == 1.5


def test_what_cannot_be_kept_is_not_tried(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(trials.FOLDER).parent
    place.write_text("no folder")
    assert chosen() == ("auto", None)

    def homeless(name: str) -> Path:
        raise RuntimeError

    monkeypatch.setattr(trials, "cache_folder", homeless)
    assert chosen() == ("auto", None)
    assert clock.num_trials == 0


def test_a_real_trial_leaves_nothing_changed() -> None:
    asked = settings(METHOD, engine=AUTO)
    model = Model(asked, (3, 8, 8), (0.4,) * 3, (0.3,) * 3)
    before = torch.random.get_rng_state()
    assert trials._speed(asked, model, AUTO, {"threads": 1, "compile": False}) > 0
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (model.trainer.work, model.settings) == ([], asked)


def run(directory: Path, *, resume: bool = False) -> RunRecord:
    return run_experiment(settings(METHOD, engine=AUTO), directory, dataset=IMAGES, resume=resume)


def test_a_run_records_the_choice_and_goes_on_with_it(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole")
    engine = whole.info.config["engine"]
    assert (engine["compile"], engine["threads"]) == (False, 1)
    assert whole.info.hardware["threads"] == 1
    assert torch.get_num_threads() == 2

    def killed(self: object, *_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("grace.runs.writing.RecordWriter.append_task", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut")
    # Another machine, or an emptied cache, would choose otherwise.
    monkeypatch.setattr(trials, "FOLDER", str(tmp_path / "empty"))
    clock.one_thread, clock.compiled = 0.1, 9.0
    monkeypatch.setattr("grace.engine.device.can_compile", lambda device: False)
    again = run(tmp_path / "cut", resume=True)
    assert again.info.config["engine"] == engine
    assert again.info.hardware["threads"] == 1
    for one, two in zip(again.tasks, whole.tasks, strict=True):
        assert one.confusion == two.confusion
        assert [phase.losses for phase in one.phases] == [phase.losses for phase in two.phases]
    assert read_record(tmp_path / "cut").complete
    assert not (tmp_path / "empty").exists()
