"""Teach a model one update: run its method, measure the cost, undo what fails or is rejected.

Shapes: N images, K classes.
"""

import time
from collections.abc import Callable, Set
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import count
from typing import Any

import torch
from torch import Tensor

from grace.data.images import LabelledImages
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.journal import Journal
from grace.engine.loss_meter import NonFiniteLossError
from grace.engine.phase import Phase
from grace.learner.admit import UpdateInput, admit, class_indices
from grace.learner.budget import within_budget
from grace.learner.calibration import temperature_of
from grace.learner.document import UpdateRecord
from grace.learner.gate import Accuracies, ClassAccuracy
from grace.learner.model import Model
from grace.learner.model_state import count_bytes
from grace.methods.classifier import Classifier
from grace.methods.method import Outcome
from grace.methods.planning import Coming
from grace.methods.scoring import accuracy, finite, refuse_diverged, scores


def learn(
    model: Model,
    given: UpdateInput,
    journal: Journal | None = None,
    save: Callable[[UpdateRecord], None] | None = None,
) -> UpdateRecord:
    """Teach a model one update; if it fails or is rejected, the model stays as it was.

    Args:
        model: learns the images.
        given: the images, checked.
        journal: saves finished work, so that a killed process can go on.
        save: called with the record at the end, before a rejected update is undone.
    """
    before = model.state.copy()
    try:
        update = _carry_out(model, given, journal)
        model.state.history.append(update)
        if model.ceiling or save is not None:
            size = count_bytes(model.state)
            update = update.model_copy(update={"num_bytes": size})
        ranks = model.trainer.ranks
        if ranks.are_several:
            # All processes must agree on whether the update is accepted.
            told = ranks.broadcast_value(update.model_dump_json())
            update = UpdateRecord.model_validate_json(told)
        model.state.history[-1] = update
        if save is not None:
            save(update)
    except BaseException as error:
        model.state = before
        if isinstance(error, NonFiniteLossError):
            error.name_setting(model.settings.method)
        raise
    if not update.accepted:
        model.state = before
    return update


def _carry_out(model: Model, given: UpdateInput, journal: Journal | None) -> UpdateRecord:
    """Learn one update and measure its cost; a failure leaves the model half changed."""
    started = time.perf_counter()
    state = model.state
    task, held_out = admit(state, given, model.settings, model.ceiling)
    present = set(task.data.labels.tolist())
    revived = sorted(state.forgotten & present)
    names = [*class_indices(state.class_names, given.labels)]
    new_names, revived_names = names[task.num_old_outputs :], [names[i] for i in revived]
    old = set(range(task.num_old_outputs)) - state.forgotten
    judges = held_out.judging(state.held_out, old)
    size = model.size()
    coming = _coming(task, state.method.memory, size.num_backbones)
    old_before = _are_right(model, judges.data(old)) if old else None
    state.forgotten -= present
    state.held_out = held_out
    state.class_names = names
    model.mask_forgotten()
    state.method.memory.record_originals(task.data.labels)
    method, budget = state.method, model.settings.budget
    with within_budget(method, budget, coming), journal.blamed() if journal else nullcontext():
        plan = {phase.name: phase.passes for phase in method.plan(coming)}
        model.trainer.progress.update_planned(plan)
        outcome, teacher = _perform(model, task, journal)
    refuse_diverged(model.trainer, state.method.classifiers(), task.data, state.method.features)
    live = held_out.data(set(range(task.num_classes)) - state.forgotten)
    calibration_error = _set_temperature(model, live)
    model.calibrate()
    _forget_features(model)
    judged = judges.data(set(range(task.num_classes)) - state.forgotten)
    now = model.size()
    return UpdateRecord(
        task=task.number,
        new_class_names=tuple(new_names),
        revived_class_names=tuple(revived_names),
        outcome=outcome,
        work=tuple(model.trainer.work),
        num_images=len(task.data),
        num_backbones=(size.num_backbones, now.num_backbones),
        num_parameters=(size.num_parameters, now.num_parameters),
        num_exemplars=len(state.method.memory),
        accuracy=Accuracies(
            teacher=teacher,
            student=accuracy(model.trainer, model.classifier(), live, method.features)
            if outcome.verdict in ("compress", "compress (budget)")
            else None,
            classes=compared(old_before, _are_right(model, judged), judged, old),
        ),
        gate=given.gate,
        temperature=state.temperature,
        calibration_error=calibration_error,
        seconds=time.perf_counter() - started,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _coming(task: Task, memory: ExemplarMemory, num_backbones: int) -> Coming:
    return Coming(
        is_first=task.number == 1,
        num_new=len(task.new_classes),
        num_images=len(task.data),
        num_kept=len(memory),
        num_seen=sum(memory.original_counts.values()),
        num_backbones=num_backbones,
    )


def _forget_features(model: Model) -> None:
    """Keep the features of stored images only.

    A saved learner has no others, so an update that is repeated sweeps the same images.
    """
    method, held = model.state.method, model.state.held_out
    if method.features is not None:
        stored = map(method.memory.of_class, method.memory.classes)
        method.features.retain([*stored, *map(held.of_class, held.classes)])


def _perform(model: Model, task: Task, journal: Journal | None) -> tuple[Outcome, float | None]:
    """Run the method; return its outcome, and its teacher's accuracy on the held-out images."""
    model.trainer.start_task(task.number)
    steps = model.state.method.learn(task, model.settings.probe)
    result: Any = None
    teacher: float | None = None
    for number in count():
        try:
            item = steps.send(result)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome, teacher
        if isinstance(item, Phase) and item.teacher is not None:
            network = item.teacher
            expert = Classifier(network.extractors, network.head)
            teacher = accuracy(model.trainer, expert, model.state.held_out.data())
        run = model.trainer.run
        result = journal.perform(number, item, model.trainer) if journal else run(item)
    raise AssertionError


def _set_temperature(model: Model, data: LabelledImages | None) -> tuple[float, float] | None:
    """Fit the temperature to held-out images of all live classes; without any it stays.

    Returns:
        The calibration error before and after; ``None``: there are too few images.
    """
    state, method = model.state, model.state.method
    if data is None or not method.classifiers():
        return None
    primary = next(iter(method.classifiers().values()))
    found = finite(scores(model.trainer, {"": primary}, data, method.features))[""]
    state.temperature, errors = temperature_of(found, data.labels)
    return errors


def _are_right(model: Model, data: LabelledImages | None) -> Tensor | None:
    """Return ``True`` for each held-out image (N,) that is predicted as its label."""
    method = model.state.method
    if data is None or not method.classifiers():
        return None
    found = scores(model.trainer, {"": model.classifier()}, data, method.features)
    return finite(found)[""].argmax(dim=1) == data.labels


def compared(
    before: Tensor | None, after: Tensor | None, data: LabelledImages | None, old: Set[int]
) -> tuple[ClassAccuracy, ...]:
    """Compare the results of held-out images before and after an update, class by class.

    Args:
        before: (M,) ``True`` for each image of an old class that was right, in the order of
            ``data``; ``None``: there are no such images, or nothing could predict them.
        after: (N,) ``True`` for each image that is right.
        data: N images in the order of their classes; ``None``: there are none.
        old: classes known before the update.
    """
    if after is None or data is None:
        return ()
    labels, earlier = data.labels, torch.zeros_like(after)
    if before is not None:
        earlier[torch.isin(labels, torch.tensor(sorted(old), dtype=torch.int64))] = before
    classes = []
    for index in labels.unique().tolist():
        own = labels == index
        was_known = before is not None and index in old
        classes.append(
            ClassAccuracy(
                index=index,
                num=int(own.sum()),
                before=int(earlier[own].sum()) if was_known else None,
                after=int(after[own].sum()),
                lost=int((earlier & ~after)[own].sum()),
            )
        )
    return tuple(classes)
