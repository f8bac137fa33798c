"""Say what is wrong with settings: path, value, nearest key; and which have no effect."""

import re
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError

from grace.base.errors import GraceError, demand_of, error_of
from grace.base.files import given_path
from grace.base.words import did_you_mean, nearest, one_line
from grace.settings.experiment import BackboneSettings, ExperimentSettings
from grace.settings.recipe import setting_text

Model = type[BaseModel]

MOST_PROBLEMS = 20
"""Further problems of one file are left out: to find a similar name for each takes time."""


def problems_of(
    error: ValidationError,
    model: Model,
    prefix: str = "",
    whole: str = "experiment",
    methods: Mapping[str, Model] | None = None,
) -> dict[str, str]:
    """Turn a validation error into one problem per setting, by dotted path.

    Each member of a union reports its own problem; they are joined with "or".

    Args:
        error: pydantic's error.
        model: model of the settings that were validated.
        prefix: dotted path of the model itself; empty for a whole file.
        whole: what the whole file is called in a problem that is no single setting's.
        methods: settings models of the section "method" by name, of which hints may speak.
    """
    fields = _fields(model, prefix)
    others: dict[str, list[str]] = {}
    for name, own in (methods or {}).items():
        for path in _fields(own, "method"):
            others.setdefault(path, []).append(f"method {name}")
    said: dict[str, str] = {}
    demands: dict[str, dict[str, None]] = {}
    for detail in error.errors(include_url=False)[: 2 * MOST_PROBLEMS]:
        path, place = _located(fields, prefix, detail["loc"])
        if demand := demand_of(detail):
            wanted = demands.setdefault(path, {})
            wanted[demand] = None
            value, text = detail["input"], " or ".join(wanted)
            choices = re.findall("'(.+?)'", text)
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            shown = repr(list(value) if isinstance(value, tuple) else value)
            shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
            said[path] = f"{path} = {shown} should be {text}{hint}"
        elif detail["type"] == "extra_forbidden":
            hint = _nearest_key(path, place, fields, others)
            said[path] = f"{path}: no such setting{hint}"
        elif detail["type"] == "missing":
            said[path] = f"{path} should be given"
        else:
            said[path] = f"{path or whole}: {error_of(detail) or detail['msg']}"
    return said


def _fields(model: Model, prefix: str) -> list[str]:
    """List the dotted path of every setting and section, with "*" for the name of an entry."""
    found: list[str] = []
    for key, field in model.model_fields.items():
        path = _joined(prefix, key)
        kind = get_origin(field.annotation)
        entry = ".*" if kind is dict else "[*]" if kind is tuple else ""
        found.append(path)
        for inner in _models(field.annotation):
            found += [path + entry, *_fields(inner, path + entry)]
    return list(dict.fromkeys(found))


def _models(annotation: object) -> list[Model]:
    """List the settings models that a value, or an entry of it, can be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _located(fields: Collection[str], prefix: str, loc: Sequence[int | str]) -> tuple[str, str]:
    """Return the dotted path of an error's location, as it was written and as in ``fields``.

    Labels that pydantic adds for unions are left out.
    """
    path = place = prefix
    for part in loc:
        if isinstance(part, int):
            path, place = f"{path}[{part}]", f"{place}[*]"
        elif place == prefix or any(other.startswith(f"{place}.") for other in fields):
            path, entry = _joined(path, part), f"{place}.*"
            place = entry if entry in fields else _joined(place, part)
    return path, place


def _joined(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix else path


def _nearest_key(
    path: str, place: str, fields: Collection[str], others: Mapping[str, Sequence[str]]
) -> str:
    """Return a hint: the nearest key of the same section, else the same word in another one."""
    parent, _, key = path.rpartition(".")
    above = place.rpartition(".")[0]
    beside = [other for other in fields if other.rpartition(".")[0] == above]
    if any(other.startswith(f"{path}.") for other in others):
        # A section of other methods, such as the recipe of a phase that this one does not have.
        own = [each for each in beside if any(other.startswith(f"{each}.") for other in fields)]
        return f"; there is {' and '.join(own)}" if own else ""
    if path in others:
        return f"; it belongs to {' and '.join(others[path])}"
    if neighbour := nearest(key, [other.rpartition(".")[2] for other in beside]):
        return f"; did you mean '{_joined(parent, neighbour)}'?"
    known = [*fields, *others]
    same = [other for other in known if other.rpartition(".")[2] == key]
    return f"; did you mean '{same[0]}'?" if same else did_you_mean(path, known)


_NEEDS = (
    ("memory.size", "memory.per_class", "none"),
    ("memory.quality", "memory.format", "webp"),
    ("data.root", "data.source", "(?!digits).*"),
    ("data.class_list", "data.source", "imagenet100"),
    ("data.(test_fraction|split_seed)", "data.source", "digits|folder"),
    ("data.fit", "data.source", "folder|imagenet100"),  # Others have squares.
    ("data.fit", "data.image_size", "[0-9]+"),
    ("backbone.stem", "backbone.name", "resnet(18|34|50)"),
    ("backbone.last_stages", "backbone.train", "last-stages"),
    ("backbone.interpolation", "backbone.input_size", "(?!none).*"),
    ("probe.images", "probe.measures", ".*(fisher|sharpness|radius).*"),
    ("probe.adversarial_.*", "probe.measures", ".*adversarial_sharpness.*"),
    ("probe.expected_.*", "probe.measures", ".*expected_sharpness.*"),
    ("probe.hessian_.*", "probe.measures", ".*hessian_radius.*"),
    ("seeds.class_order", "scenario.class_order", "none"),
    (r"(method\.\w+)\.decay", r"\1.milestones", r"\[.+\]"),
    (r"(method\.\w+)\.momentum", r"\1.optimiser", "sgd"),
    (r"(method\.\w+)\.betas", r"\1.optimiser", "adamw?"),
)
"""Settings, the other setting that decides if they have an effect, and its values if they do."""


def settings_without_effect(settings: ExperimentSettings, paths: Collection[str]) -> list[str]:
    """Return the dotted ``paths`` that have no effect in ``settings``, with the reason."""
    whys = {path: _why_idle(settings, path) for path in paths}
    return [f"{path} has no effect: {why}" for path, why in whys.items() if why]


def _why_idle(settings: ExperimentSettings, path: str) -> str | None:
    method, own = settings.method, path.removeprefix("method.")
    if re.fullmatch("memory.(size|per_class|format|quality)", path):
        match method.traits.memory:
            case "none":
                return f"{method.name} keeps no exemplars"
            case "all images":
                return f"{method.name} keeps all images"
    for pattern, other, needed in _NEEDS:
        if found := re.fullmatch(pattern, path):
            decisive = found.expand(other)
            value = setting_text(attrgetter(decisive)(settings))
            if not re.fullmatch(needed, value):
                return f"{decisive} is {value}"
    idle = method.idle_settings()
    # The name of a recipe stands for all settings in it.
    return idle.get(own) or idle.get(own.partition(".")[0])


def refuse_learner_settings(settings: ExperimentSettings) -> None:
    """Refuse settings of learners, which an experiment would ignore.

    Raises:
        GraceError: naming the first of them.
    """
    usual = ExperimentSettings()
    for path in _fields(ExperimentSettings, ""):
        is_learners = re.fullmatch(r"(budget|gate)\..+|memory\.(validation|max_mb)", path)
        if is_learners and attrgetter(path)(settings) != attrgetter(path)(usual):
            raise GraceError(
                f"{path} has no effect on an experiment, only on a learner", "leave it out"
            )


def refuse_missing_weights(backbone: BackboneSettings) -> None:
    """Refuse a file of weights that is not there, before torch is imported."""
    weights = backbone.weights
    if weights not in ("none", "timm") and not given_path(weights).exists():
        raise GraceError(one_line(f"weights file '{weights}' is missing"), "set backbone.weights")
