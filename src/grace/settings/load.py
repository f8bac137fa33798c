"""Resolve experiments: a packaged or user's YAML file, its parents, and overrides.

A file holds the differences from its ``parent``. Its ``methods`` hold presets: "*" for every
method, then one per method; both override the chosen ``method``'s defaults, and explicit settings
override them. The ``backbone`` of a preset overrides that of its file.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from pydantic import ValidationError

from grace.base.errors import GraceError, GraceWarning
from grace.base.words import did_you_mean
from grace.settings import yaml_text
from grace.settings.describe import describe_settings
from grace.settings.effects import settings_without_effect
from grace.settings.experiment import BackboneSettings, ExperimentSettings
from grace.settings.flat import flatten
from grace.settings.layers import (
    Layer,
    as_method,
    backbone_for,
    merge,
    merge_experiments,
    of_every_method,
    parse_overrides,
    without_backbone,
)
from grace.settings.method import AnyMethodSettings
from grace.settings.packaged import ConfigError, find, is_path, packaged, read_mapping
from grace.settings.registry import METHOD_SETTINGS, REFUSED_METHODS
from grace.settings.setting_problems import (
    MOST_PROBLEMS,
    Problem,
    WrongValue,
    booleans_as_numbers,
    problems_of,
)
from grace.settings.settings_model import Settings


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
        problems |= booleans_as_numbers(given, model, "method")
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
    problems = booleans_as_numbers(raw, ExperimentSettings) | problems
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
