"""The subjects of the contract suite: a tiny form of every method, made from its settings."""

from typing import Any

import pytest
import torch

from grace.settings.method import AnyMethodSettings
from grace.settings.recipe import Recipe
from grace.settings.registry import METHODS, resolve
from support.recorded_streams import Piece
from support.tiny_streams import labelled, recipe


def tiny(name: str, short: Recipe, **changes: Any) -> AnyMethodSettings:
    """A method's settings with a short recipe wherever they have one."""
    model = METHODS[name].settings
    fields = model.model_fields.items()
    recipes = {key: short for key, field in fields if field.annotation is Recipe}
    return model.model_validate(recipes | changes)


def variants(short: Recipe) -> dict[str, AnyMethodSettings]:
    """All methods, plain and in the variants that their files declare."""
    found = {}
    for name, file in METHODS.items():
        declared = {"": {}} | dict(file.declared.get("variants", {}))
        for suffix, changes in declared.items():
            found[f"{name}-{suffix}".rstrip("-")] = tiny(name, short, **changes)
    return found


VARIANTS = variants(recipe())
PROBE = labelled(dict.fromkeys(range(5), 4), seed=5)

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def name_of(variant: str) -> str:
    return VARIANTS[variant].name


def head_shapes(variant: str, num_classes: int, width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the head's tensors, by name."""
    with torch.device("meta"):
        method = resolve("method", name_of(variant))
        head = method.make_head(VARIANTS[variant], width, num_classes, None)
    return {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}


def with_epochs(variant: str, epochs: int) -> AnyMethodSettings:
    """The settings of a variant, with so many epochs in every phase."""
    settings = VARIANTS[variant]
    recipes = {name: value for name, value in settings if isinstance(value, Recipe)}
    longer = {name: kept.model_copy(update={"epochs": epochs}) for name, kept in recipes.items()}
    return settings.model_copy(update=longer)


def trains(variant: str) -> bool:
    """True if it has a recipe, and one that has an effect."""
    idle = VARIANTS[variant].idle_settings()
    return any(isinstance(kept, Recipe) and name not in idle for name, kept in VARIANTS[variant])


def keeps_exemplars(variant: str) -> bool:
    return VARIANTS[variant].traits.memory == "exemplars"


def is_excepted(variant: str, piece: Piece | str, kind: str = "changes") -> bool:
    """True if the method's file names this piece of its work in its exceptions of a kind."""
    name = piece if isinstance(piece, str) else piece.name
    return name in METHODS[name_of(variant)].declared.get("exceptions", {}).get(kind, {})


def excepted(method: str) -> list[str]:
    return [name for name in VARIANTS if name_of(name) == method]
