"""A time budget scales epochs, and gives the same epochs to the same update."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from grace.engine.progress import Silence
from grace.learner import machine_speed as making
from grace.learner.budget import is_scalable, rounded_speed
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.settings.experiment import BudgetSettings
from grace.settings.methods import GraceSettings
from grace.settings.recipe import Recipe
from support import tiny_streams as ts
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

METHOD = GraceSettings(base=ts.recipe(40), grow=ts.recipe(30), compress=ts.recipe(20))


def made(budget: BudgetSettings, directory: Path | None = None) -> Learner:
    settings = ts.settings(METHOD, budget=budget)
    return Learner.create(settings, shape=(3, 8, 8), directory=directory)


def epochs(learner: Learner) -> dict[str, int]:
    """Learn two classes of 20 images; return the epochs of every phase."""
    data = ts.labelled({0: 20, 1: 20})
    update = learner.update(data.images, ts.class_names(data))
    return {work.name: work.epochs for work in update.work if work.epochs}


def test_epochs_are_as_many_as_the_minutes_allow() -> None:
    # 40 images at 8 images/s: 5 s an epoch, so that 12 epochs take a minute.
    learner = made(BudgetSettings(minutes=1, speed=8))
    assert epochs(learner)["base"] == 12
    # The settings keep all epochs, so that a later, smaller update gets more of them.
    assert learner.settings.method == METHOD
    assert learner.method.settings == METHOD


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (BudgetSettings(minutes=100, speed=8), 40),
        (BudgetSettings(minutes=0.01, speed=8), 5),
        (BudgetSettings(minutes=0.01, speed=8, fixed=("base",)), 40),
        (BudgetSettings(), 40),
    ],
    ids=["never more than the recipe", "never fewer than five", "given epochs stay", "no budget"],
)
def test_epochs_stay_within_bounds(budget: BudgetSettings, expected: int) -> None:
    assert epochs(made(budget))["base"] == expected


def test_the_training_time_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, float | None]] = []
    monkeypatch.setattr(Silence, "training_expected", lambda _, *seconds: told.append(seconds))
    epochs(made(BudgetSettings(minutes=1, speed=8)))  # 12 epochs of 40 images
    assert told == [(60.0, 60.0)]
    epochs(made(BudgetSettings()))
    assert told == [(60.0, 60.0)]
    epochs(made(BudgetSettings(minutes=0.1, speed=8)))  # 5 epochs of 40 images
    assert told[1:] == [(25.0, 6.0)]


def test_the_plan_is_told_with_the_epochs_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Mapping[str, float]] = []
    monkeypatch.setattr(Silence, "update_planned", lambda _, passes: told.append(passes))
    epochs(made(BudgetSettings(minutes=1, speed=8)))
    epochs(made(BudgetSettings()))
    assert told == [{"base": 12 * 40}, {"base": 40 * 40}]


def test_a_later_update_is_scaled_by_what_it_costs() -> None:
    learner = made(BudgetSettings(minutes=1, speed=16))
    epochs(learner)
    kept = len(learner.method.memory)
    data = ts.labelled({2: 18})
    update = learner.update(data.images, ts.class_names(data))
    # Growing beside one frozen backbone costs 4/3 passes, compressing beside two 5/3.
    used = {work.name: work.epochs for work in update.work}
    cost = {
        percent: max(5, 30 * percent // 100) * 4 / 3 + max(5, 20 * percent // 100) * 5 / 3
        for percent in range(1, 101)
    }
    best = max(p for p, passes in cost.items() if passes * (18 + kept) <= 60 * 16)
    assert used["grow"] == max(5, 30 * best // 100)
    assert used["compress"] == max(5, 20 * best // 100)


def test_the_speed_is_measured_once_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "measure_speed", lambda *_: 10.0)
    learner = made(BudgetSettings(minutes=1), tmp_path / "model")
    assert learner.settings.budget.speed == 8
    assert ModelStore.open(tmp_path / "model").creation.settings.budget.speed == 8
    monkeypatch.setattr(making, "measure_speed", lambda *_: pytest.fail("measured again"))
    assert epochs(learner)["base"] == 12
    again = Learner.load(tmp_path / "model")
    assert again.settings.budget == learner.settings.budget
    # Nothing to scale: nothing to measure.
    fixed = BudgetSettings(minutes=1, fixed=("base", "grow", "compress"))
    assert made(fixed).settings.budget.speed is None


def test_equal_budgets_give_equal_learners() -> None:
    one, other = (made(BudgetSettings(minutes=1, speed=8)) for _ in range(2))
    epochs(one), epochs(other)
    assert ts.same(ts.state(one.method.network), ts.state(other.method.network))


@pytest.mark.parametrize(
    ("measured", "rounded"), [(8, 8), (6.8, 8), (6.6, 4), (13.4, 8), (13.6, 16), (0.9, 1)]
)
def test_speeds_are_rounded_to_powers_of_two(measured: float, rounded: float) -> None:
    assert rounded_speed(measured) == rounded


def test_a_recipe_with_warm_up_milestones_and_an_average_can_be_scaled() -> None:
    base = Recipe(
        epochs=40, batch_size=8, milestones=(20, 30), warmup_epochs=8, warmup_lr=0.001,
        average_epochs=12,
    )  # fmt: skip
    assert is_scalable(GraceSettings(base=base), BudgetSettings(minutes=1))
    seen: list[Recipe] = []

    def first_task(method: Any, task: object) -> Iterator[None]:
        seen.append(method.settings.base)
        raise InterruptedError
        yield

    settings = ts.settings(GraceSettings(base=base), budget=BudgetSettings(minutes=0.01, speed=1))
    learner = Learner.create(settings, shape=(3, 8, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(learner.method), "first_task", first_task)
        with pytest.raises(InterruptedError):
            epochs(learner)
    assert (seen[0].epochs, seen[0].milestones, seen[0].warmup_epochs) == (5, (2, 4), 1)
    assert seen[0].average_epochs == 2
    assert learner.method.settings.base == base
