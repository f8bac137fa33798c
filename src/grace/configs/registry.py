"""Names of methods and data sources → where their classes live, imported only when used."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, final

from grace.configs._nearest import did_you_mean

Kind = Literal["method", "dataset"]


@final
@dataclass(frozen=True)
class Entry:
    """One registered name: a line for people and, where a class stands behind it, its place."""

    description: str
    target: str | None = None
    """``"module:Class"``; none where the room that uses the name dispatches on it itself."""


METHODS: Mapping[str, Entry] = MappingProxyType(
    {
        "grace": Entry(
            "grow a provisional backbone, assess the mergeable one, compress where there is room",
            "grace.methods.grace:Grace",
        ),
        "der": Entry(
            "one new backbone per task beside the frozen old ones", "grace.methods.der:DER"
        ),
        "foster": Entry(
            "boost the old network with a second backbone, distil both into one student",
            "grace.methods.foster:Foster",
        ),
        "memo": Entry(
            "one new last stage per task over a trunk that all tasks share",
            "grace.methods.memo:Memo",
        ),
        "wa": Entry(
            "replay with distillation, then new classes scaled to the old ones' mean length",
            "grace.methods.wa:WA",
        ),
        "icarl": Entry(
            "replay with distillation, classified by the nearest mean of exemplars",
            "grace.methods.icarl:ICaRL",
        ),
        "replay": Entry(
            "one network trained on each task's images and the exemplars",
            "grace.methods.replay:Replay",
        ),
        "ewc": Entry(
            "one network on each task's own images, held where it was important",
            "grace.methods.ewc:EWC",
        ),
        "finetune": Entry(
            "lower bound: one network trained on each task's own images alone",
            "grace.methods.finetune:Finetune",
        ),
        "joint": Entry(
            "upper bound: a fresh network on all images of all seen classes",
            "grace.methods.joint:Joint",
        ),
    }
)

DATASETS: Mapping[str, Entry] = MappingProxyType(
    {
        "digits": Entry("scikit-learn's digits: 1,797 grey images of 8×8 pixels, offline"),
        "cifar10": Entry("60,000 colour images of 32×32 pixels in 10 classes; downloads"),
        "cifar100": Entry("60,000 colour images of 32×32 pixels in 100 classes; downloads"),
        "imagenet100": Entry("100 classes of an ImageNet folder (data.root, data.class_list)"),
        "folder": Entry("a folder of images (data.root): root/<class>/… or root/train|test/…"),
    }
)


def entries(kind: Kind) -> Mapping[str, Entry]:
    """Return the registered names of one kind."""
    return METHODS if kind == "method" else DATASETS


def resolve(kind: Kind, name: str) -> Any:  # noqa: ANN401 - the class is known to its caller
    """Import and return the class registered under a name.

    Raises:
        ValueError: the name is unknown; the nearest known one is named.
    """
    known = entries(kind)
    if name not in known:
        raise ValueError(
            f"unknown {kind} '{name}'{did_you_mean(name, known)} (known: {', '.join(known)})"
        )
    target = known[name].target
    assert target is not None, f"no class is registered for {kind} '{name}'"
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
