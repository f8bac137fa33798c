"""Find settings that have no effect, given the other settings."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import final

from grace.base.errors import GraceError
from grace.settings.experiment import ExperimentSettings
from grace.settings.recipe import Recipe


@final
@dataclass(frozen=True)
class _Rule:
    """A pattern of dotted paths, and a function: why a path has no effect; ``None``: it has one."""

    pattern: str
    why: Callable[[ExperimentSettings, str], str | None]


def settings_without_effect(settings: ExperimentSettings, paths: Collection[str]) -> list[str]:
    """Return the dotted ``paths`` that have no effect in ``settings``, with the reason."""
    lines = []
    for path in paths:
        for rule in _RULES:
            why = rule.why(settings, path) if fnmatchcase(path, rule.pattern) else None
            if why:
                lines.append(f"{path} has no effect: {why}")
                break
    return lines


def refuse_learner_settings(settings: ExperimentSettings) -> None:
    """Refuse settings of learners, which an experiment would ignore.

    Raises:
        GraceError: naming the first of them.
    """
    usual = ExperimentSettings()
    for name in ("budget", "gate", "memory"):
        given, section = getattr(settings, name), getattr(usual, name)
        for field, value in given:
            is_learners = name != "memory" or field in ("validation", "max_mb")
            if is_learners and value != getattr(section, field):
                raise GraceError(
                    f"{name}.{field} has no effect on an experiment, only on a learner",
                    "leave it out",
                )


def _memory(settings: ExperimentSettings, path: str) -> str | None:
    if path not in ("memory.size", "memory.per_class", "memory.format", "memory.quality"):
        return None
    method = settings.method
    match method.traits.memory:
        case "none":
            return f"{method.name} keeps no exemplars"
        case "all images":
            return f"{method.name} keeps all images"
    if path == "memory.size" and settings.memory.per_class is not None:
        return "memory.per_class decides"
    if path == "memory.quality" and settings.memory.format != "webp":
        return "memory.format is not webp"
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


def _fit(settings: ExperimentSettings, _path: str) -> str | None:
    data = settings.data
    if data.source not in ("folder", "imagenet100"):
        return f"the images of {data.source} are squares"
    return None if data.image_size else "data.image_size makes no squares"


def _stem(settings: ExperimentSettings, _path: str) -> str | None:
    with_stem = ("resnet18", "resnet34", "resnet50")
    name = settings.backbone.name
    return None if name in with_stem else f"only {', '.join(with_stem)} choose a stem, not {name}"


def _backbone(settings: ExperimentSettings, path: str) -> str | None:
    backbone = settings.backbone
    if path == "backbone.last_stages" and backbone.train != "last-stages":
        return "backbone.train is not last-stages"
    if path == "backbone.interpolation" and backbone.input_size is None:
        return "backbone.input_size enlarges no image"
    return None


def _probe(settings: ExperimentSettings, path: str) -> str | None:
    measures, own = settings.probe.measures, path.removeprefix("probe.")
    if own == "measures":
        return None
    if own == "images":
        others = set(measures) - {"effective_rank", "weight_norm"}
        return None if others else "no measure in probe.measures draws images"
    measure = {"adversarial": "adversarial_sharpness", "expected": "expected_sharpness"}
    name = measure.get(own.partition("_")[0], "hessian_radius")
    return None if name in measures else f"probe.measures has no {name}"


def _class_order(settings: ExperimentSettings, _path: str) -> str | None:
    explicit = settings.scenario.class_order is not None
    return "scenario.class_order gives the order itself" if explicit else None


def _method(settings: ExperimentSettings, path: str) -> str | None:
    """Return why a method's setting has no effect; the name of a recipe covers its fields."""
    idle = settings.method.idle_settings()
    own = path.removeprefix("method.")
    return idle.get(own) or idle.get(own.partition(".")[0])


def _decay(settings: ExperimentSettings, path: str) -> str | None:
    recipe: object = settings
    for part in path.split(".")[:-1]:
        recipe = getattr(recipe, part)
    assert isinstance(recipe, Recipe)
    return None if recipe.milestones else "there are no milestones at which it would apply"


def _moments(settings: ExperimentSettings, path: str) -> str | None:
    recipe: object = settings
    *above, name = path.split(".")
    for part in above:
        recipe = getattr(recipe, part)
    assert isinstance(recipe, Recipe)
    is_idle = (name == "momentum") == (recipe.optimiser != "sgd")
    return f"optimiser {recipe.optimiser} has no {name}" if is_idle else None


_RULES = (
    _Rule("memory.*", _memory),
    _Rule("data.root", _source),
    _Rule("data.fit", _fit),
    _Rule("data.class_list", _source),
    _Rule("data.test_fraction", _source),
    _Rule("data.split_seed", _source),
    _Rule("backbone.stem", _stem),
    _Rule("backbone.*", _backbone),
    _Rule("probe.*", _probe),
    _Rule("seeds.class_order", _class_order),
    _Rule("method.*.decay", _decay),
    _Rule("method.*.momentum", _moments),
    _Rule("method.*.betas", _moments),
    _Rule("method.*", _method),
)
