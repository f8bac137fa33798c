"""Resolve experiments: a packaged or user's YAML file, its parents, and overrides.

A file is a layer: it holds the differences from its ``parent``. Its ``methods`` hold presets: "*"
for every method, then one per method; both override the chosen ``method``'s defaults, and explicit
settings override them. The ``backbone`` of a preset overrides that of its file.
"""

import os
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from pydantic import BaseModel, ValidationError

from grace.base.errors import GraceError, GraceWarning
from grace.base.files import given_path, read_small
from grace.base.words import did_you_mean
from grace.settings import yaml_text
from grace.settings.experiment import BackboneSettings, ExperimentSettings, SeedSettings
from grace.settings.method import AnyMethodSettings
from grace.settings.problems import MOST_PROBLEMS, problems_of, settings_without_effect
from grace.settings.recipe import Recipe, merge
from grace.settings.registry import METHODS, REFUSED_METHODS

Kind = Literal["experiment", "study"]
Layer = dict[str, Any]

_FOLDERS = {"experiment": "experiments", "study": "studies"}
_LISTED_BY = {"experiment": "grace list experiments", "study": "grace study"}


@final
class ConfigError(GraceError):
    """All problems of an experiment's settings, in one line."""

    def __init__(self, problems: Collection[str]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} settings are wrong: " if len(problems) > 1 else ""
        super().__init__(count + "; ".join(self.problems[:MOST_PROBLEMS]))


@final
class ConfigWarning(GraceWarning):
    """A setting is allowed but has no effect."""


def load_experiment(
    experiment: str | ExperimentSettings = "digits", overrides: Sequence[str] = ()
) -> ExperimentSettings:
    """Resolve an experiment to its settings.

    Args:
        experiment: a packaged experiment, the path of a YAML file, or settings to change.
        overrides: ``key.path=value`` texts with YAML values, applied last. ``method=der`` switches
            the method and takes its preset; ``seed=N`` sets all four seeds.

    Returns:
        The frozen settings, every field resolved.

    Raises:
        ConfigError: if a setting is wrong; it lists all problems.

    Warns:
        ConfigWarning: if a setting in ``overrides`` or in a user's file has no effect.
    """
    if isinstance(experiment, str):
        chain = _chain(experiment)
    elif overrides:
        chain = [experiment.model_dump(mode="json")]
    else:
        return experiment
    layer = parse_overrides(overrides)
    settings, explicit = _resolve([*chain, layer]), [*flatten(layer)]
    if isinstance(experiment, str) and is_path(experiment):
        # A file may state defaults for completeness; warn only about values that differ from them.
        departures = {row.path for row in describe_settings(settings) if not row.is_default}
        explicit += [path for path in flatten(chain[-1]) if path in departures]
    for line in settings_without_effect(settings, dict.fromkeys(explicit)):
        warnings.warn(line, ConfigWarning, stacklevel=2)
    return settings


def dump_settings(settings: ExperimentSettings) -> str:
    """Write resolved settings as YAML that :func:`load_experiment` reads back equal."""
    return yaml_text.dump(settings.model_dump(mode="json"))


def list_experiments() -> dict[str, str]:
    """Map the name of every packaged experiment to its one-line description."""
    names = packaged("experiment")
    return {name: read_file("experiment", name)[0]["description"] for name in names}


class SettingRow(NamedTuple):
    """One resolved setting: dotted path, value, default or not, meaning."""

    path: str
    value: Any
    is_default: bool
    meaning: str


def describe_settings(settings: ExperimentSettings) -> list[SettingRow]:
    """List every resolved setting in the order of its model.

    ``is_default`` compares a value with the default of the settings model; for a method, that is
    the published value.
    """
    return _rows(settings, ExperimentSettings(), "")


def _rows(model: BaseModel, default: object, prefix: str) -> list[SettingRow]:
    rows: list[SettingRow] = []
    for key, field in type(model).model_fields.items():
        value, below, path = getattr(model, key), getattr(default, key, None), f"{prefix}{key}"
        if isinstance(value, BaseModel):
            same = isinstance(below, type(value))
            rows += _rows(value, below if same else type(value)(), f"{path}.")
        else:
            rows.append(SettingRow(path, value, value == below, field.description or ""))
    return rows


def packaged(kind: Kind) -> list[str]:
    """List the names of the packaged files of a kind, sorted."""
    names = [entry.name for entry in (files("grace.settings") / _FOLDERS[kind]).iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def read_file(kind: Kind, name: str, folder: Path = Path()) -> tuple[Layer, str]:
    """Read a packaged file by its name, or a user's by its path.

    Args:
        kind: what the file describes.
        name: a packaged name, or a path.
        folder: folder that a relative path starts from.

    Returns:
        What the file maps, and its packaged name or normal path.

    Raises:
        ConfigError: if there is no such file, it cannot be read, or holds something else.
    """
    place = name
    try:
        if is_path(name):
            place = os.path.normpath(folder / given_path(name))
            text = read_small(Path(place), f"'{name}'", yaml_text.MAX_BYTES, given=True)
        elif name in (names := packaged(kind)):
            text = (files("grace.settings") / _FOLDERS[kind] / f"{name}.yaml").read_bytes()
        else:
            raise GraceError(
                f"no packaged {kind} '{name}'{did_you_mean(name, names)} "
                f"('{_LISTED_BY[kind]}' shows them; a file is given as a path ending in .yaml)"
            )
        layer = yaml_text.parse(text, name)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigError([f"{kind} file '{name}': {reason.lower()}"]) from error
    except GraceError as error:
        raise ConfigError([str(error)]) from error
    if not isinstance(layer, dict):
        raise ConfigError([f"{name}: should hold settings, one 'key: value' per line"])
    return layer, place


def is_path(name: str) -> bool:
    """Return ``True`` if a name is the path of a user's file."""
    return name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


def _chain(name_or_path: str) -> list[Layer]:
    """Read an experiment and its parents, the oldest first."""
    layers: dict[str, Layer] = {}
    current, folder = name_or_path, Path()
    while True:
        layer, place = read_file("experiment", current, folder)
        if place in layers:
            raise ConfigError([f"the parents of '{name_or_path}' run in a circle at '{current}'"])
        name = re.sub(r"[^\w.-]+", "-", Path(current).stem)
        layer.setdefault("name", name if name.strip(".") else "experiment")
        layers[place] = layer
        parent = layer.pop("parent", None)
        if parent is None:
            return [*layers.values()][::-1]
        if not isinstance(parent, str):
            raise ConfigError([f"{current}: parent = {parent!r} should be a name or a path"])
        current, folder = parent, Path(place).parent


def parse_overrides(overrides: Sequence[str]) -> Layer:
    """Read ``key.path=value`` texts as one layer.

    ``seed=N`` sets all four seeds; ``seeds.<name>=M`` overrides one of them.

    Raises:
        ConfigError: if a text has another form; it lists all of them.
    """
    layer: Layer = {}
    problems: list[str] = []
    pairs = [(text, *text.partition("=")) for text in overrides]
    for text, key, equals, written in sorted(pairs, key=lambda pair: pair[1].strip() != "seed"):
        path = key.strip().split(".")
        if not equals or not all(map(str.strip, path)) or len(path) > yaml_text.MAX_DEPTH:
            problems.append(f"'{text}' is no setting: write key.path=value, such as method=der")
            continue
        try:
            value = yaml_text.parse(written, text)
        except GraceError as error:
            problems.append(str(error))
            continue
        if path == ["seed"]:
            path, value = ["seeds"], dict.fromkeys(SeedSettings.model_fields, value)
        elif path == ["method"] and isinstance(value, str):
            value = {"name": value}
        inner = layer
        for part in path[:-1]:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        old = inner.get(path[-1])
        if isinstance(old, dict) and isinstance(value, dict):
            value = {**old, **value}
        inner[path[-1]] = value
    if problems:
        raise ConfigError(problems)
    return layer


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Map dotted paths to the values of nested settings; lists and empty sections are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _over(below: Layer, above: Layer) -> Layer:
    """Merge two experiments; if ``above`` has another method, it replaces all method settings."""
    old, new = (_with_name(layer.get("method")) for layer in (below, above))
    merged = merge(below, above)
    if isinstance(old, dict) and isinstance(new, dict):
        is_other = "name" in new and new["name"] != old.get("name", "grace")
        merged["method"] = new if is_other else merge(old, new)
    return merged


def _with_name(method: Any) -> Any:  # noqa: ANN401 - as written by users
    """Return ``{name: der}`` for ``der``, and what is no name as it is."""
    return {"name": method} if isinstance(method, str) else method or {}


def _resolve(layers: Sequence[Layer]) -> ExperimentSettings:
    """Merge layers, the lowest first, and validate them; raise one error of all problems."""
    if not all(isinstance(layer.get("methods", {}), dict) for layer in layers):
        raise ConfigError(["methods: should hold one mapping per method"])
    raw: Layer = {}
    for layer in layers:
        raw = _over(raw, layer)
    presets, given = raw.pop("methods", {}), _with_name(raw.pop("method", None))
    name = given.get("name", "grace") if isinstance(given, dict) else given
    problems = _problems_of_presets(presets, name)
    if isinstance(name, str) and name in METHODS:
        model, rule = METHODS[name].settings, presets.get("*", {})
        below = _of_every_method(rule, model) if isinstance(rule, dict) else {}
        given = merge(merge(below, _own(presets.get(name, {}))), given)
        found = _problems(model, given, "method")
        problems |= found
        given = model() if found else model.model_validate(given)
        # A preset's backbone lies over that of its layer, and under that of the next one.
        backbone: Layer = {}
        for layer in layers:
            for part in (layer, layer.get("methods", {}).get(name)):
                if isinstance(part, dict) and "backbone" in part:
                    backbone = merge(backbone, {"backbone": part["backbone"]})
        raw |= backbone
    raw["method"] = given
    problems |= _problems(ExperimentSettings, raw, "")
    if problems:
        raise ConfigError(problems.values())
    return ExperimentSettings.model_validate(raw)


def _own(preset: Any) -> Layer:  # noqa: ANN401 - as written by users
    """Return the settings of a method in its preset, which may also have some of the backbone."""
    pairs = preset.items() if isinstance(preset, dict) else ()
    return {key: value for key, value in pairs if key != "backbone"}


def _of_every_method(rule: Layer, model: type[AnyMethodSettings]) -> Layer:
    """Return what the preset "*", which is for all methods, says of one of them.

    Its "*" is for every recipe that it does not name. Settings that the method does not have are
    left out, as are milestones where the method's own schedule has none; ``epochs`` below 1 are a
    share of the published ones.
    """
    found: Layer = {}
    for name, field in model.model_fields.items():
        given = rule.get(name)
        if field.annotation is Recipe:
            given, default = rule.get("*") if given is None else given, field.get_default()
            if isinstance(given, dict):
                given, epochs = dict(given), given.get("epochs")
                if given.get("schedule", default.schedule) != "multistep":
                    given.pop("milestones", None)
                if isinstance(epochs, float) and 0 < epochs < 1:
                    given["epochs"] = round(epochs * default.epochs)
        if given is not None:
            found[name] = given
    return found


def _problems_of_presets(presets: Layer, chosen: object) -> dict[str, str]:
    """Return the problems of the presets but the chosen method's, which are those of "method"."""
    problems: dict[str, str] = {}
    for name, preset in presets.items():
        path = f"methods.{name}"
        if len(problems) > MOST_PROBLEMS or name in REFUSED_METHODS:
            continue  # A preset of a method that cannot be used here does no harm.
        if not isinstance(preset, dict):
            problems[path] = f"{path} = {preset!r} should be a mapping of settings"
        elif name == "*":
            known = {"*"}.union(*(model.model_fields for model in _models().values()))
            for key in preset.keys() - known:
                hint = did_you_mean(key, known)
                problems[path] = f"{path}.{key}: no method has such a setting{hint}"
        elif name not in METHODS:
            problems[path] = f"{path}: no such method{did_you_mean(name, METHODS)}"
        elif name != chosen:
            problems |= _problems(METHODS[name].settings, _own(preset), path)
            problems |= _problems(BackboneSettings, preset.get("backbone", {}), f"{path}.backbone")
    return problems


def _problems(model: type[BaseModel], given: object, place: str) -> dict[str, str]:
    try:
        model.model_validate(given)
    except ValidationError as error:
        return problems_of(error, model, place, methods=_models())
    return {}


def _models() -> dict[str, type[AnyMethodSettings]]:
    return {name: method.settings for name, method in METHODS.items()}
