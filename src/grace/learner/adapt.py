"""Make the model of a learner; give it other settings, and drop what no longer fits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from grace.base.errors import DamagedError, GraceError
from grace.data.arrays import imagenet_constants
from grace.engine.progress import Progress
from grace.learner.budget import measured_passes, needs_passes
from grace.learner.document import UpdateRecord
from grace.learner.model import Model
from grace.learner.model_state import file_bytes
from grace.learner.setting_changes import differences, effect, refuse_fixed
from grace.methods.preprocessing import constants
from grace.methods.saved import FILE, read, restore
from grace.settings.experiment import BudgetSettings, ExperimentSettings
from grace.settings.load import load_experiment


def new_model(
    settings: ExperimentSettings,
    shape: tuple[int, int, int],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    progress: Progress | None,
) -> Model:
    """Make the model of a new learner; arguments and errors as in ``Learner.create``."""
    channels = 1 if shape[0] == 1 else 3
    means, deviations = constants(settings.backbone, channels, *imagenet_constants(channels))
    constant = tuple(mean or means), tuple(std or deviations)
    if progress is not None and needs_passes(settings.method, settings.budget):
        progress.waiting("measuring this machine's speed")
    settings = _with_passes(settings, settings.budget, shape, *constant)
    return Model(settings, shape, *constant, progress)


def _with_passes(
    settings: ExperimentSettings,
    before: BudgetSettings,
    shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
) -> ExperimentSettings:
    """Return settings whose budget states the passes that its minutes allow.

    Other minutes than ``before`` change the passes in proportion; else a batch is timed.
    """
    budget, passes = settings.budget, None
    if budget.minutes != before.minutes and budget.passes == before.passes:
        if budget.minutes and before.minutes and before.passes:
            passes = budget.minutes / before.minutes * before.passes
        budget = budget.model_copy(update={"passes": passes})
    if needs_passes(settings.method, budget):
        assert budget.minutes is not None
        model = Model(settings, shape, mean, std, is_saved=True)
        passes = measured_passes(model.state.method, model.trainer, shape, budget.minutes)
        budget = budget.model_copy(update={"passes": passes})
    return settings.model_copy(update={"budget": budget})


def with_settings(model: Model, settings: ExperimentSettings) -> Model:
    """Return a model with other settings that knows the same; the given one must not be used again.

    Nothing is dropped: see ``fit``.

    Args:
        model: any model.
        settings: its settings from now on.

    Raises:
        GraceError: if what the model has learnt does not fit the settings.
    """
    old, trainer = model.state, model.trainer
    made = Model(
        _with_passes(settings, model.settings.budget, model.shape, model.mean, model.std),
        model.shape,
        model.mean,
        model.std,
        trainer.progress,
        is_saved=bool(old.history),
        ranks=trainer.ranks,
    )
    made.trainer.observers.extend(trainer.observers)
    state = made.state
    changes = differences(model.settings, made.settings)
    try:
        state.method.state.adopt(old.method.state.collect(), len(old.class_names))
    except DamagedError as error:
        names = ", ".join(change.path for change in changes)
        raise GraceError(
            f"{names} cannot change: what the learner has saved does not fit: {error.what}"
        ) from error
    state.method.features = old.method.features
    kept = old.method.memory
    state.method.memory.restore(
        {index: kept.of_class(index) for index in kept.classes}, kept.original_counts
    )
    kept_changes = [change for change in changes if effect(change.path) != "machine"]
    made.state = replace(old, method=state.method, changed=(*old.changed, *kept_changes))
    return made


def with_changes(model: Model, overrides: Sequence[str], whose: str) -> Model:
    """Return a model with changed settings that predicts as the given one, and fits them.

    Args:
        model: a model that has learnt something; where a setting changes, it must not be used
            again.
        overrides: ``key.path=value`` texts.
        whose: the learner, in words.

    Returns:
        The given model if no setting changes.

    Raises:
        GraceError: if a setting is wrong or cannot change, or the ceiling is too low.
        TypeError: for anything but texts, such as a list of them.
    """
    if not all(isinstance(override, str) for override in overrides):
        raise TypeError("give each setting as a text of its own: 'memory.max_mb=8'")
    settings = load_experiment(model.settings, overrides)
    refuse_fixed(model.settings, settings, whose)
    if settings == model.settings:
        return model
    made = with_settings(model, settings)
    made.state.changed = (*model.state.changed, *differences(model.settings, made.settings))
    fit(made)
    return made


def fit(model: Model) -> None:
    """Drop the held-out images and exemplars that a model's settings no longer allow.

    Exemplars are dropped in herding order, the last ones first. Predictions stay as they are.

    Raises:
        GraceError: if the ceiling is too low for even one exemplar of each class; the message names
            the smallest ceiling that is enough.
    """
    state, memory = model.state, model.state.method.memory
    wanted = model.settings.memory.validation
    is_stale = any(state.held_out.count(index) > wanted for index in state.held_out.classes)
    if is_stale:
        state.held_out = state.held_out.first(wanted)
    parts = state.method.state.collect().parts
    num_classes, weights = len(state.class_names), sum(map(file_bytes, parts.values()))
    num_remembered = num_classes - len(state.forgotten)
    if model.ceiling is not None:
        model.ceiling.set_room(
            state, state.held_out, weights, num_classes, num_remembered, what="this learner"
        )
    if model.settings.method.traits.memory == "exemplars":
        nothing = torch.empty(0, dtype=torch.int64)
        memory.reduce(memory.quota(num_remembered, weights, nothing))
        memory.fit(weights)
    if is_stale or model.ceiling is not None:
        model.calibrate()


def model_of_run(directory: Path, progress: Progress | None) -> Model:
    """Return a model that knows what a run has learnt; see ``Learner.from_run``."""
    path = directory / FILE
    if not path.exists():
        raise GraceError(f"'{directory}' holds no state of a run (no {FILE})", "run it with --keep")
    saved, kept = read(path)
    model = Model(saved.settings, saved.shape, saved.mean, saved.std, progress, is_saved=True)
    state = model.state
    restore(state.method, saved, kept, f"'{path}'")
    state.method.state.refuse_unfit(saved.shape)
    state.class_names = saved.class_names
    state.history = [
        UpdateRecord(task=number, new_class_names=task.new_class_names, outcome=task.outcome)
        for number, task in enumerate(saved.tasks, start=1)
    ]
    return model
