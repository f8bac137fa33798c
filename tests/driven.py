"""Carry ``learn`` through by hand: phases are not trained, what sweeps answer is made up."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grace.data.scenario import Task
from grace.engine.phase import Batch, GradientSweep, Phase, PhaseResult, Work, named_parameters
from grace.methods.base import Method, Outcome

Answer = Callable[[Work], Any]


def drive(
    method: Method[Any], work: Task, answer: Answer = lambda item: None
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
    if isinstance(item, Phase):
        for module in [*item.backbones, *item.heads]:
            module.eval().requires_grad_(False)
        return PhaseResult({})
    if isinstance(item, GradientSweep):
        parameters = named_parameters(item.backbones, item.heads)
        return {name: torch.ones_like(value) for name, value in parameters.items()}
    return torch.rand(len(item.data), 64)


def batch(labels: Tensor, learned: Tensor, frozen: Tensor | None = None) -> Batch:
    """What an objective is handed, of features (B, d)."""
    images = torch.zeros(len(labels), 3, 8, 8)
    outputs = [] if frozen is None else [frozen]
    return Batch(images, labels, outputs, [learned], 0, torch.Generator())
