"""A budget of passes scales epochs, and gives the same epochs to the same update."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from grace.engine.progress import Progress, Silence
from grace.learner.budget import needs_passes
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.methods.probe import Probe
from grace.settings.experiment import BudgetSettings
from grace.settings.recipe import Recipe
from support import tiny_streams as ts
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

METHOD = Grace.Settings(base=ts.recipe(40), grow=ts.recipe(30), compress=ts.recipe(20))
MINUTE = BudgetSettings(minutes=1, passes=480)
"""40 images take 40 passes an epoch, so that 12 epochs fit."""


def made(
    budget: BudgetSettings, directory: Path | None = None, progress: Progress | None = None
) -> Learner:
    settings = ts.settings(METHOD, budget=budget)
    return Learner.create(settings, shape=(3, 8, 8), directory=directory, progress=progress)


def epochs(learner: Learner) -> dict[str, int]:
    """Learn two classes of 20 images; return the epochs of every phase."""
    data = ts.labelled({0: 20, 1: 20})
    update = learner.update(data.images, ts.class_names(data))
    return {work.name: work.epochs for work in update.work if work.epochs}


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (MINUTE, 12),
        (BudgetSettings(passes=519), 12),
        (BudgetSettings(passes=520), 13),
        (BudgetSettings(passes=48000), 40),
        (BudgetSettings(passes=5), 5),
        (BudgetSettings(), 40),
    ],
    ids=["those that fit", "13 do not", "13 do", "never more", "never fewer than 5", "no budget"],
)
def test_epochs_are_as_many_as_the_passes_allow(budget: BudgetSettings, expected: int) -> None:
    told: list[Mapping[str, float]] = []
    progress = Silence()
    progress.update_planned = told.append  # type: ignore[method-assign]
    learner = made(budget, progress=progress)
    assert epochs(learner)["base"] == expected
    assert told == [{"base": expected * 40}]
    # The settings keep all epochs, so that a later, smaller update gets more of them.
    assert learner.settings.method == learner.method.settings == METHOD


def test_a_later_update_is_scaled_by_what_it_costs() -> None:
    learner = made(BudgetSettings(passes=960))
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
    best = max(p for p, passes in cost.items() if passes * (18 + kept) <= 960)
    assert used["grow"] == max(5, 30 * best // 100)
    assert used["compress"] == max(5, 20 * best // 100)


def test_passes_are_measured_once_and_saved(tmp_path: Path) -> None:
    learner = made(BudgetSettings(minutes=1), tmp_path / "model")
    passes = learner.settings.budget.passes
    assert passes is not None
    assert passes > 1000
    assert passes.hex().startswith("0x1.0000000000000p"), "it is a power of two"
    assert ModelStore.open(tmp_path / "model").settings().budget.passes == passes
    epochs(learner)
    again = Learner.load(tmp_path / "model")
    assert again.settings.budget == learner.settings.budget
    # Other minutes are other passes of the same machine; without minutes there are none.
    again.change_settings("budget.minutes=3")
    assert again.settings.budget == BudgetSettings(minutes=3, passes=3 * passes)
    again.change_settings("budget.minutes=none")
    assert again.settings.budget == BudgetSettings()


def test_what_cannot_be_scaled_is_not_measured() -> None:
    minutes = BudgetSettings(minutes=1)
    assert needs_passes(METHOD, minutes)
    few = Grace.Settings(base=ts.recipe(5), grow=ts.recipe(1), compress=ts.recipe(5))
    for method, budget in [(few, minutes), (Probe.Settings(), minutes), (METHOD, MINUTE)]:
        assert not needs_passes(method, budget)
    assert not needs_passes(METHOD, BudgetSettings())


def test_a_recipe_with_warm_up_milestones_and_an_average_can_be_scaled() -> None:
    base = Recipe(
        epochs=40, batch_size=8, milestones=(20, 30), warmup_epochs=8, warmup_lr=0.001,
        average_epochs=12,
    )  # fmt: skip
    seen: list[Recipe] = []

    def first_task(method: Any, task: object) -> Iterator[None]:
        seen.append(method.settings.base)
        raise InterruptedError
        yield

    settings = ts.settings(Grace.Settings(base=base), budget=BudgetSettings(passes=1))
    learner = Learner.create(settings, shape=(3, 8, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(learner.method), "first_task", first_task)
        with pytest.raises(InterruptedError):
            epochs(learner)
    assert (seen[0].epochs, seen[0].milestones, seen[0].warmup_epochs) == (5, (2, 4), 1)
    assert seen[0].average_epochs == 2
    assert learner.method.settings.base == base
