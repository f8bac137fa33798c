"""Settings that someone set on purpose and that do nothing beside their others."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import final

from grace.configs.experiment import ExperimentSettings
from grace.configs.methods import EWCSettings, GraceSettings, ICaRLSettings
from grace.configs.recipe import Recipe


@final
@dataclass(frozen=True)
class _Rule:
    """A pattern of dotted paths, and why a match has no effect (none: it has one)."""

    pattern: str
    why: Callable[[ExperimentSettings, str], str | None]


def settings_without_effect(settings: ExperimentSettings, paths: Collection[str]) -> list[str]:
    """Name those of the dotted ``paths`` that have no effect in ``settings``, with the reason."""
    lines = []
    for path in paths:
        for rule in _RULES:
            why = rule.why(settings, path) if fnmatchcase(path, rule.pattern) else None
            if why:
                lines.append(f"{path} has no effect: {why}")
                break
    return lines


def _memory(settings: ExperimentSettings, path: str) -> str | None:
    if path not in ("memory.size", "memory.per_class"):
        return None
    match settings.method.name:
        case "finetune" | "ewc" as name:
            return f"{name} keeps no exemplars"
        case "joint":
            return "joint keeps all images"
    if path == "memory.size" and settings.memory.per_class is not None:
        return "memory.per_class decides"
    return None


def _source(settings: ExperimentSettings, path: str) -> str | None:
    source = settings.data.source
    idle = {
        "data.root": source == "digits",
        "data.class_list": source != "imagenet100",
        "data.test_fraction": source in ("cifar10", "cifar100", "imagenet100"),
        "data.split_seed": source in ("cifar10", "cifar100", "imagenet100"),
    }
    reasons = {
        "data.root": "digits come with scikit-learn",
        "data.class_list": "it is imagenet100's",
    }
    return reasons.get(path, f"{source} has its own test images") if idle[path] else None


def _stem(settings: ExperimentSettings, _path: str) -> str | None:
    with_stem = ("resnet18", "resnet34", "resnet50")
    name = settings.backbone.name
    return None if name in with_stem else f"only {', '.join(with_stem)} choose a stem, not {name}"


def _class_order(settings: ExperimentSettings, _path: str) -> str | None:
    explicit = settings.scenario.class_order is not None
    return "scenario.class_order gives the order itself" if explicit else None


def _grace(settings: ExperimentSettings, path: str) -> str | None:
    method = settings.method
    if not isinstance(method, GraceSettings):
        return None
    logits, features = method.logit_distillation, method.feature_distillation
    match path.removeprefix("method."):
        case "threshold" | "threshold_decay" if method.expand_at is not None:
            return "method.expand_at decides"
        case "gamma" if method.initialisation != "importance":
            return f"it weights method.initialisation=importance, not {method.initialisation}"
        case "logit_weight" | "temperature" if not logits:
            return "method.logit_distillation is off"
        case "feature_weight" if not features:
            return "method.feature_distillation is off"
        case "scale_cross_entropy" if not method.scale_cross_entropy and (logits or features):
            return "it only matters when both distillations are off"
    return None


def _weightless(settings: ExperimentSettings, path: str) -> str | None:
    match settings.method:
        case EWCSettings(penalty_weight=0) if path == "method.importance_limit":
            return "method.penalty_weight is 0"
        case ICaRLSettings(distillation_weight=0) if path == "method.temperature":
            return "method.distillation_weight is 0"
    return None


def _decay(settings: ExperimentSettings, path: str) -> str | None:
    recipe: object = settings
    for part in path.split(".")[:-1]:
        recipe = getattr(recipe, part)
    assert isinstance(recipe, Recipe)
    return None if recipe.milestones else "there are no milestones at which it would apply"


_RULES = (
    _Rule("memory.*", _memory),
    _Rule("data.root", _source),
    _Rule("data.class_list", _source),
    _Rule("data.test_fraction", _source),
    _Rule("data.split_seed", _source),
    _Rule("backbone.stem", _stem),
    _Rule("seeds.class_order", _class_order),
    _Rule("method.*.decay", _decay),
    _Rule("method.*", _grace),
    _Rule("method.*", _weightless),
)
