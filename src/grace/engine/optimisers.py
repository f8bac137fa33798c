"""The optimiser of a recipe, and its state named by parameters.

Momenta and moments have the shapes of their parameters; step counts are scalars.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from grace.base.errors import GraceError
from grace.engine.phase import Parts
from grace.settings.recipe import Group, Recipe

_NONE = "none"
"""Key of a parameter without state: no loss has reached it, or its optimiser stores nothing."""
_STATE = "optimiser/"
"""Prefix of the names of the optimiser's own tensors: ``optimiser/exp_avg/head.weight``."""


def build_optimiser(recipe: Recipe, parts: Parts) -> torch.optim.Optimizer:
    """Make a recipe's optimiser, with a parameter group for each of its groups.

    Args:
        recipe: optimiser, weight decay, factors of the groups.
        parts: their parameters train, in the groups that they belong to.

    Raises:
        GraceError: if the recipe names a group that no part is in.
    """
    missing = recipe.groups.keys() - {part.group for part in parts.values()}
    if missing:
        raise GraceError(
            f"recipe.groups: no part of this phase is in group '{min(missing)}': known are "
            f"{', '.join(sorted({part.group for part in parts.values()}))}"
        )
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for part in parts.values():
        for parameter in part.trained().values():
            decays = recipe.decays_vectors or parameter.ndim > 1
            groups.setdefault((part.group, decays), []).append(parameter)
    described = [
        {
            "params": members,
            "lr_factor": recipe.groups.get(name, Group()).lr_factor,
            "weight_decay": _decay(recipe, name) if decays else 0.0,
        }
        for (name, decays), members in groups.items()
    ]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(described, lr=recipe.lr, momentum=recipe.momentum, fused=True)
    kind = torch.optim.Adam if recipe.optimiser == "adam" else torch.optim.AdamW
    return kind(described, lr=recipe.lr, betas=recipe.betas, fused=True)


def _decay(recipe: Recipe, group: str) -> float:
    own = recipe.groups.get(group, Group()).weight_decay
    return recipe.weight_decay if own is None else own


def set_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Set every parameter group's learning rate: ``lr`` times the group's factor."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["lr_factor"]


def named_moments(
    optimiser: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the optimiser's own tensors (momenta, moments, step counts) by name."""
    for name, parameter in parameters.items():
        own = {k: v for k, v in optimiser.state[parameter].items() if isinstance(v, Tensor)}
        for key, value in own.items():
            yield f"{_STATE}{key}/{name}", value
        if not own:
            # Named too, so that a tensor lost from a file differs from one that never was.
            yield f"{_STATE}{_NONE}/{name}", torch.empty(0)
    yield f"{_STATE}{type(optimiser).__name__.lower()}", torch.empty(0)


def is_moment(name: str) -> bool:
    """Return True for the names that ``named_moments`` gives."""
    return name.startswith(_STATE)


def restore_moments(
    optimiser: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    saved: Mapping[str, Tensor],
) -> None:
    """Put saved moments back into the optimiser.

    Args:
        optimiser: gets them.
        parameters: its parameters by name.
        saved: tensors that ``named_moments`` gave; others are ignored.
    """
    for full, value in saved.items():
        key, _, name = full.removeprefix(_STATE).partition("/")
        if full.startswith(_STATE) and name and key != _NONE:
            parameter = parameters[name]
            # copy_ keeps the layout of the parameter, whatever the file's was.
            like = torch.empty_like(parameter) if value.shape == parameter.shape else value.clone()
            optimiser.state[parameter][key] = like.to(parameter.device).copy_(value)


def moments_fit(
    recipe: Recipe, parameters: Mapping[str, nn.Parameter], saved: Mapping[str, Tensor]
) -> bool:
    """Return True if saved tensors are the full state of this recipe's optimiser.

    Args:
        recipe: its optimiser.
        parameters: by name.
        saved: tensors by name; those of other things are ignored.
    """
    keys = ["exp_avg", "exp_avg_sq", "step"]
    if recipe.optimiser == "sgd":
        keys = ["momentum_buffer"] if recipe.momentum else []
    found = {name: t.shape for name, t in saved.items() if name.startswith(_STATE)}
    expected = {f"{_STATE}{recipe.optimiser}": torch.Size([0])}
    for name, parameter in parameters.items():
        if not keys or f"{_STATE}{_NONE}/{name}" in found:
            expected[f"{_STATE}{_NONE}/{name}"] = torch.Size([0])
        else:
            shapes = (torch.Size() if key == "step" else parameter.shape for key in keys)
            expected |= {f"{_STATE}{k}/{name}": s for k, s in zip(keys, shapes, strict=True)}
    return found == expected
