"""The subjects of the contract suite: a tiny form of every method, and the three exceptions."""

from collections.abc import Mapping
from typing import Any

import pytest

from grace.configs.methods import (
    BaseMethodSettings,
    DERSettings,
    EWCSettings,
    FinetuneSettings,
    FosterSettings,
    GraceSettings,
    ICaRLSettings,
    JointSettings,
    MemoSettings,
    ReplaySettings,
    WASettings,
)
from grace.configs.recipe import Recipe
from grace.configs.registry import resolve
from grace.methods.base import Method
from recorded_streams import Piece
from tiny_streams import labelled, recipe

BASE = {"base": recipe()}
GRACE = {**BASE, "grow": recipe(), "compress": recipe()}
VARIANTS: Mapping[str, BaseMethodSettings] = {
    # A threshold of 1 is above every saturation of these features, 0 above none.
    "grace-compresses": GraceSettings(threshold=1.0, **GRACE),
    "grace-grows": GraceSettings(threshold=0.0, **GRACE),
    "grace-previous": GraceSettings(assess_on="previous", expand_at=(3,), **GRACE),
    "der": DERSettings(grow=recipe(), **BASE),
    "foster": FosterSettings(boost=recipe(), compress=recipe(), **BASE),
    "memo": MemoSettings(grow=recipe(), **BASE),
    "memo-frozen": MemoSettings(grow=recipe(), train_base=False, **BASE),
    "wa": WASettings(update=recipe(), **BASE),
    "icarl": ICaRLSettings(update=recipe(), **BASE),
    "replay": ReplaySettings(update=recipe(), **BASE),
    "ewc": EWCSettings(update=recipe(), **BASE),
    "finetune": FinetuneSettings(update=recipe(), **BASE),
    "joint": JointSettings(**BASE),
}
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    # Method and piece of its work: what that does which no other may do, and why.
    ("joint", "base"): "the upper bound starts a fresh network at every task",
    ("grace", "compress"): "the student has one backbone less and a fresh head over them",
    ("ewc", "fisher"): "the pass for the Fisher information moves batch-norm buffers (spec §3.3.4)",
}
PROBE = labelled(dict.fromkeys(range(5), 4), seed=5)

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def name_of(variant: str) -> str:
    return str(vars(VARIANTS[variant])["name"])


def declared(variant: str) -> type[Method[Any]]:
    """The method's class."""
    found: type[Method[Any]] = resolve("method", name_of(variant))
    return found


def with_epochs(variant: str, epochs: int) -> BaseMethodSettings:
    """The settings of a variant, with so many epochs in every phase."""
    settings = VARIANTS[variant]
    recipes = {name: value for name, value in settings if isinstance(value, Recipe)}
    assert recipes
    longer = {name: kept.model_copy(update={"epochs": epochs}) for name, kept in recipes.items()}
    return settings.model_copy(update=longer)


def keeps_exemplars(variant: str) -> bool:
    return declared(variant).uses_memory and not declared(variant).keeps_all_images


def is_excepted(variant: str, piece: Piece) -> bool:
    return (name_of(variant), piece.name) in EXCEPTIONS


def excepted(method: str) -> list[str]:
    return [name for name in VARIANTS if name_of(name) == method]
