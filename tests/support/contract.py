"""The subjects of the contract suite: a tiny form of every method, and the exceptions.

``GRACE_CONTRACT_VARIANTS`` adds those of a method in another package: it names a module whose
``VARIANTS`` and, if there are any, ``EXCEPTIONS`` are like those below.
"""

import os
from importlib import import_module

import pytest

from grace.settings.methods import (
    AnyMethodSettings,
    BeefSettings,
    CreateSettings,
    DERSettings,
    DGRSettings,
    EWCSettings,
    FinetuneSettings,
    FosterSettings,
    GraceSettings,
    ICaRLSettings,
    JointSettings,
    MemoSettings,
    ProbeSettings,
    ReplaySettings,
    TagFexSettings,
    WASettings,
)
from grace.settings.recipe import Recipe
from support.recorded_streams import Piece
from support.tiny_streams import labelled, recipe

BASE = {"base": recipe()}
GRACE = {**BASE, "grow": recipe(), "compress": recipe()}
VARIANTS: dict[str, AnyMethodSettings] = {
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
    "dgr": DGRSettings(update=recipe(), **BASE),
    "tagfex": TagFexSettings(grow=recipe(), **BASE),
    "tagfex-random": TagFexSettings(grow=recipe(), old_rows="random", **BASE),
    # Its scores differ little in so few steps, the more the larger the scale.
    "create": CreateSettings(update=recipe(), balance=recipe(), score_scale=0.3, **BASE),
    "beef": BeefSettings(expand=recipe(), fuse=recipe(), **BASE),
    "probe": ProbeSettings(update=recipe()),
    "probe-mean": ProbeSettings(head="nearest_mean"),
}
EXCEPTIONS: dict[tuple[str, str], str] = {
    # Method and piece of its work: what that does which no other may do, and why.
    ("joint", "base"): "the upper bound starts a fresh network at every task",
    ("grace", "compress"): "the student has one backbone less and a fresh head over them",
    ("ewc", "fisher"): "the Fisher pass moves batch-norm buffers (docs/methods/ewc.md)",
    ("create", "balance"): "goes on with the auto-encoders that update has left",
}
SELECTIVE = {("create", "balance"), ("beef", "fuse")}
"""Methods and their phases that train on some of the task's images, a class-balanced choice."""
ALONE = {("beef", "expand")}
"""Methods and their phases that train a module without the old network beside it."""
HEADLESS = {("beef", "expand"), ("beef", "fuse")}
"""Methods and their phases that train no grown head: rows that others trained are joined after."""
WITHOUT_PHASE = ("probe-mean",)
"""Variants that train nothing."""
if outside := os.environ.get("GRACE_CONTRACT_VARIANTS"):
    VARIANTS |= import_module(outside).VARIANTS
    EXCEPTIONS |= getattr(import_module(outside), "EXCEPTIONS", {})
PROBE = labelled(dict.fromkeys(range(5), 4), seed=5)

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def name_of(variant: str) -> str:
    return str(vars(VARIANTS[variant])["name"])


def head_shapes(variant: str, num_classes: int, width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the head's tensors, by name: linear but for CREATE's auto-encoders."""
    if name_of(variant) == "create":
        return {"encoders": (num_classes, 32, width), "decoders": (num_classes, width, 32)}
    return {"weight": (num_classes, width), "bias": (num_classes,)}


def with_epochs(variant: str, epochs: int) -> AnyMethodSettings:
    """The settings of a variant, with so many epochs in every phase."""
    settings = VARIANTS[variant]
    recipes = {name: value for name, value in settings if isinstance(value, Recipe)}
    assert recipes
    longer = {name: kept.model_copy(update={"epochs": epochs}) for name, kept in recipes.items()}
    return settings.model_copy(update=longer)


def keeps_exemplars(variant: str) -> bool:
    return VARIANTS[variant].traits.memory == "exemplars"


def is_excepted(variant: str, piece: Piece) -> bool:
    return (name_of(variant), piece.name) in EXCEPTIONS


def excepted(method: str) -> list[str]:
    return [name for name in VARIANTS if name_of(name) == method]
