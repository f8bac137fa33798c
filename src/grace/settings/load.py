"""Resolve experiments: a packaged or user's YAML file, its parents, and overrides.

A file holds the differences from its ``parent``. Its ``methods`` hold presets: "*" for every
method, then one per method; both override the chosen ``method``'s defaults, and explicit settings
override them. The ``backbone`` of a preset overrides that of its file.
"""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, final

from pydantic import BaseModel, ValidationError

from grace.base.errors import GraceError, GraceWarning
from grace.base.words import did_you_mean
from grace.settings import yaml_text
from grace.settings.effects import settings_without_effect
from grace.settings.experiment import BackboneSettings, ExperimentSettings
from grace.settings.layers import (
    Layer,
    as_method,
    backbone_for,
    flatten,
    merge,
    merge_experiments,
    of_every_method,
    parse_overrides,
    without_backbone,
)
from grace.settings.method import AnyMethodSettings
from grace.settings.recipe import Settings
from grace.settings.registry import METHOD_SETTINGS, REFUSED_METHODS
from grace.settings.setting_problems import (
    MOST_PROBLEMS,
    Problem,
    WrongValue,
    problems_of,
)

Kind = Literal["experiment", "study"]

_FOLDERS = {"experiment": "experiments", "study": "studies"}
_LISTED_BY = {"experiment": "grace list experiments", "study": "grace study"}


@final
class ConfigError(GraceError):
    """All problems of an experiment's settings, in one line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} settings are wrong: " if len(problems) > 1 else ""
        lines = list(map(str, problems[:MOST_PROBLEMS]))
        more = ["and others"] if len(problems) > MOST_PROBLEMS else []
        super().__init__(count + "; ".join([*lines, *more]))


def packaged(kind: Kind) -> list[str]:
    """List the names of the packaged files of a kind, sorted."""
    names = [entry.name for entry in _folder(kind).iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def is_path(name: str) -> bool:
    """Return ``True`` if a name is the path of a user's file."""
    return name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


def find(kind: Kind, name: str, folder: Path) -> tuple[Traversable, str]:
    """Find a packaged file by its name, or a user's by its path.

    Args:
        kind: what the file describes.
        name: a packaged name, or a path.
        folder: folder that a relative path starts from.

    Returns:
        The file, and a text that is equal for equal files.

    Raises:
        ConfigError: if no packaged file has this name.
    """
    if is_path(name):
        path = folder / Path(name).expanduser()
        return path, os.path.realpath(path)
    names = packaged(kind)
    if name not in names:
        raise ConfigError(
            [
                f"no packaged {kind} '{name}'{did_you_mean(name, names)} "
                f"('{_LISTED_BY[kind]}' shows them; a file is given as a path ending in .yaml)"
            ]
        )
    return _folder(kind) / f"{name}.yaml", name


def read_mapping(kind: Kind, source: Traversable, where: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Args:
        kind: what the file describes, for messages.
        source: the file.
        where: its name in messages.

    Raises:
        ConfigError: if it cannot be read, or holds something else.
    """
    try:
        if isinstance(source, Path):
            layer = yaml_text.read(source, where)
        else:
            layer = yaml_text.parse(source.read_text(encoding="utf-8"), where)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigError([f"{kind} file '{where}': {reason.lower()}"]) from error
    except GraceError as error:
        raise ConfigError([str(error)]) from error
    if not isinstance(layer, dict) or not all(isinstance(key, str) for key in layer):
        raise ConfigError([f"{where}: should hold settings, one 'key: value' per line"])
    return layer


def _folder(kind: Kind) -> Traversable:
    return files("grace.settings") / _FOLDERS[kind]


@final
@dataclass(frozen=True)
class SettingRow:
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
        value = getattr(model, key)
        below = getattr(default, key, None)
        path = f"{prefix}{key}"
        if isinstance(value, BaseModel):
            same = isinstance(below, type(value))
            rows += _rows(value, below if same else type(value)(), f"{path}.")
        else:
            rows.append(SettingRow(path, value, value == below, _meaning(field.description, path)))
    return rows


def _meaning(description: str | None, path: str) -> str:
    return description or ("which method learns" if path == "method.name" else "")


@final
class ConfigWarning(GraceWarning):
    """A setting is allowed but has no effect."""


def list_experiments() -> dict[str, str]:
    """Map the name of every packaged experiment to its one-line description."""
    layers = {name: _chain(name) for name in packaged("experiment")}
    merged = {name: _flattened(chain) for name, chain in sorted(layers.items())}
    return {name: str(layer.get("description", "")) for name, layer in merged.items()}


def load_experiment(
    name_or_path: str = "digits", overrides: Sequence[str] = ()
) -> ExperimentSettings:
    """Resolve an experiment to its settings.

    Args:
        name_or_path: a packaged experiment, or the path of a YAML file.
        overrides: ``key.path=value`` texts with YAML values, applied last. ``method=der`` switches
            the method and takes its preset; ``seed=N`` sets all four seeds.

    Returns:
        The frozen settings, every field resolved.

    Raises:
        ConfigError: if a setting is wrong; it lists all problems.

    Warns:
        ConfigWarning: if a setting in ``overrides`` or in a user's file has no effect.
    """
    chain = _chain(name_or_path)
    layer, problems = parse_overrides(overrides)
    settings, found = _resolve([*chain, layer])
    if problems or found or settings is None:
        raise ConfigError([*problems, *found])
    explicit = dict.fromkeys(flatten(layer))
    if is_path(name_or_path):
        # A file may state defaults for completeness; warn only about values that differ from them.
        departures = {row.path for row in describe_settings(settings) if not row.is_default}
        explicit |= {path: None for path in flatten(chain[-1]) if path in departures}
    for line in settings_without_effect(settings, explicit):
        warnings.warn(line, ConfigWarning, stacklevel=2)
    return settings


def as_settings(
    experiment: str | ExperimentSettings, overrides: Sequence[str] = ()
) -> ExperimentSettings:
    """Return settings as they are, or resolve an experiment by its name or file.

    Args:
        experiment: resolved settings, the name of a packaged experiment, or the path of a YAML
            file.
        overrides: ``key.path=value`` texts over a named experiment.

    Raises:
        GraceError: if overrides are given with resolved settings, or a setting is wrong.
    """
    if isinstance(experiment, str):
        return load_experiment(experiment, overrides)
    if overrides:
        raise GraceError(
            f"'{overrides[0]}' cannot change settings that are resolved",
            "give the experiment by its name, or give it to load_experiment",
        )
    return experiment


def change_settings(settings: ExperimentSettings, overrides: Sequence[str]) -> ExperimentSettings:
    """Return resolved settings with overrides over them.

    Args:
        settings: the settings to start from.
        overrides: ``key.path=value`` texts, as for :func:`load_experiment`.

    Raises:
        ConfigError: if a setting is wrong; it lists all problems.
    """
    layer, problems = parse_overrides(overrides)
    changed, found = _resolve([settings.model_dump(mode="json"), layer])
    if problems or found or changed is None:
        raise ConfigError([*problems, *found])
    for line in settings_without_effect(changed, flatten(layer)):
        warnings.warn(line, ConfigWarning, stacklevel=2)
    return changed


def dump_settings(settings: ExperimentSettings) -> str:
    """Write resolved settings as YAML that :func:`load_experiment` reads back equal."""
    return yaml_text.dump(settings.model_dump(mode="json"))


def _resolve(layers: Sequence[Layer]) -> tuple[ExperimentSettings | None, list[Problem]]:
    raw = _flattened(layers)
    presets = raw.pop("methods", {})
    if not isinstance(presets, Mapping):
        return None, ["methods: should hold one mapping per method"]
    problems = _preset_problems(presets)
    method = as_method(raw.pop("method", None))
    name = method.get("name", "grace") if isinstance(method, Mapping) else method
    chosen: AnyMethodSettings | None = None
    if isinstance(name, str) and name in METHOD_SETTINGS:
        model = METHOD_SETTINGS[name]
        raw |= backbone_for(layers, name)
        rule = presets.get("*", {})
        below = of_every_method(rule, model) if isinstance(rule, Mapping) else {}
        given = merge(merge(below, without_backbone(presets.get(name))), method)
        # Problems of the chosen preset are reported once, under "method".
        problems = {key: line for key, line in problems.items() if _outside(key, name)}
        try:
            chosen = model.model_validate(given)
        except ValidationError as error:
            problems = problems_of(error, model, "method", methods=METHOD_SETTINGS) | problems
    elif isinstance(name, str) and name in REFUSED_METHODS:
        demand = f"cannot be used: {REFUSED_METHODS[name]}"
        problems["method"] = WrongValue("method", repr(name), demand)
    else:
        hint, known = did_you_mean(str(name), METHOD_SETTINGS), ", ".join(METHOD_SETTINGS)
        problems["method"] = WrongValue("method", repr(name), f"should be one of {known}{hint}")
    settings = None
    try:
        beside = {} if chosen is None else {"method": chosen}
        settings = ExperimentSettings.model_validate(raw | beside)
    except ValidationError as error:
        found = problems_of(error, ExperimentSettings, methods=METHOD_SETTINGS)
        problems |= {path: problem for path, problem in found.items() if path not in problems}
    return settings, list(problems.values())


def _outside(path: str, name: str) -> bool:
    return path != f"methods.{name}" and not path.startswith(f"methods.{name}.")


def _preset_problems(presets: Mapping[str, Any]) -> dict[str, Problem]:
    problems: dict[str, Problem] = {}
    for name, preset in presets.items():
        if len(problems) > MOST_PROBLEMS:
            break
        path = f"methods.{name}"
        if name == "*":
            known = {"*"}.union(*(model.model_fields for model in METHOD_SETTINGS.values()))
            unknown = [preset] if not isinstance(preset, Mapping) else [*preset.keys() - known]
            for key in unknown[:1]:
                hint = did_you_mean(str(key), known)
                problems[path] = f"{path}.{key}: no method has such a setting{hint}"
            continue
        if name in REFUSED_METHODS:
            continue  # A preset of a method that cannot be used here does no harm.
        if name not in METHOD_SETTINGS:
            problems[path] = f"{path}: no such method{did_you_mean(str(name), METHOD_SETTINGS)}"
        elif not isinstance(preset, Mapping):
            problems[path] = f"{path} = {preset!r} should be a mapping of settings"
        else:
            parts: list[tuple[str, type[Settings], Any]] = [
                (path, METHOD_SETTINGS[name], without_backbone(preset)),
                (f"{path}.backbone", BackboneSettings, preset.get("backbone", {})),
            ]
            for place, model, part in parts:
                try:
                    model.model_validate(part)
                except ValidationError as error:
                    problems |= problems_of(error, model, place)
    return problems


def _flattened(chain: Sequence[Layer]) -> Layer:
    merged: Layer = {}
    for layer in chain:
        merged = merge_experiments(merged, layer)
    return merged


def _chain(name_or_path: str) -> list[Layer]:
    """Read an experiment and its parents, the oldest first."""
    layers: list[Layer] = []
    seen: list[str] = []
    current, folder = name_or_path, Path()
    while True:
        source, identity = find("experiment", current, folder)
        if identity in seen:
            raise ConfigError([f"the parents of '{name_or_path}' run in a circle at '{current}'"])
        seen.append(identity)
        layer = read_mapping("experiment", source, current)
        name = re.sub(r"[^\w.-]+", "-", Path(current).stem)
        layer.setdefault("name", name if name.strip(".") else "experiment")
        layers.append(layer)
        parent = layer.pop("parent", None)
        if parent is None:
            return layers[::-1]
        if not isinstance(parent, str):
            raise ConfigError([f"{current}: parent = {parent!r} should be a name or a path"])
        folder = source.parent if isinstance(source, Path) else Path()
        current = parent
