"""Carry ``learn`` through by hand: phases are not trained, what sweeps answer is made up."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grace.data.scenario import Task
from grace.engine import parts as graph
from grace.engine.phase import Batch, GradientSweep, Phase, PhaseResult, Rounds, Work
from grace.methods.method import Method, Outcome
from grace.nn.heads import LinearHead

Answer = Callable[[Work], Any]


def drive(
    method: Method, work: Task, answer: Answer = lambda item: None
) -> tuple[Outcome, list[Any]]:
    """Return the outcome of a task and what was yielded; ``answer`` may give an item's result."""
    items: list[Any] = []
    steps, result = method.learn(work), None
    try:
        while True:
            item = steps.send(result)
            items.append(item)
            result = answer(item)
            if result is None:
                result = made_up(item)
    except StopIteration as stop:
        return stop.value, items


def made_up(item: Work) -> Any:
    """An untrained phase, squared gradients of 1, or random features."""
    if isinstance(item, Phase | Rounds):
        for phase in item.phases:
            for module in graph.changing(phase.parts):
                module.eval().requires_grad_(False)
        results = [PhaseResult({}) for _ in item.phases]
        return results[0] if isinstance(item, Phase) else results
    if isinstance(item, GradientSweep):
        parameters = graph.named_parameters(item.parts)
        return {name: torch.ones_like(value) for name, value in parameters.items()}
    return torch.rand(len(item.data), 64)


def batch(
    phase: Phase | GradientSweep,
    labels: Tensor | Sequence[int],
    outputs: Mapping[str, Tensor] | None = None,
) -> Batch:
    """What an objective is handed, with outputs (B, d) in place of those of some parts.

    Parts that read images, or a trunk, give random features where nothing is said of them; all
    others run on what they read.
    """
    labels = torch.as_tensor(labels)
    images = torch.zeros(len(labels), 3, 8, 8)
    found: dict[str, Any] = {}
    for name, part in phase.parts.items():
        if outputs and name in outputs:
            found[name] = outputs[name]
        elif set(part.reads) & {"images", "trunk"}:
            found[name] = torch.rand(len(labels), 64)
        else:
            found[name] = part.module(*[found[read] for read in part.reads])
    assert not outputs or outputs.keys() <= found.keys()
    return Batch(images, labels, found)


def module_of(item: Any, part: str) -> Any:
    """The module of a part of a phase or sweep."""
    return item.parts[part].module


def head_of(item: Any, part: str = "head") -> LinearHead:
    """A head that a phase trains."""
    head = module_of(item, part)
    assert isinstance(head, LinearHead)
    assert item.parts[part].trains is True
    return head


def backbones_of(item: Any, *, training: bool) -> list[nn.Module]:
    """The modules of a phase or sweep that read images, or a trunk, by whether they train."""
    return [
        part.module
        for name, part in item.parts.items()
        if name != "trunk"
        and set(part.reads) <= {"images", "trunk"}
        and (part.trains is True) == training
        and part.changes == training
    ]


def forget(method: Method, classes: Collection[int]) -> None:
    """Let a method forget classes, as a learner does."""
    for index in classes:
        method.memory.forget(index)
    method.state.forget(classes)
