"""A tiny form of every method, for suites that all of them pass."""

from collections.abc import Mapping

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
from tiny_streams import recipe

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
