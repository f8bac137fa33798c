"""Merge layers of settings: a layer holds the differences from the layer below it."""

from collections.abc import Mapping, Sequence
from typing import Any

from grace.base.errors import GraceError
from grace.settings import yaml_text
from grace.settings.method import AnyMethodSettings
from grace.settings.recipe import Recipe, scaled
from grace.settings.setting_problems import Problem, WrongValue


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Map dotted paths to the values of nested settings; lists and empty sections are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


Layer = dict[str, Any]


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Layer:
    """Merge ``above`` over ``below``: mappings merge key by key, other values are replaced.

    Milestones belong to a multistep schedule and its number of epochs. A layer with another
    schedule drops the milestones below it; a layer that changes only the epochs scales them.
    ``min_lr`` belongs to the cosine schedule and is dropped with it.
    """
    merged = dict(below)
    if above.get("schedule", "cosine") != "cosine":
        merged.pop("min_lr", None)
    if above.get("schedule", "multistep") != "multistep":
        merged.pop("milestones", None)
    elif "epochs" in above and "milestones" in below:
        merged["milestones"] = _moved(below, above["epochs"])
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(under, value) if both else value  # type: ignore[arg-type]
    return merged


def _moved(recipe: Mapping[str, Any], epochs: Any) -> Any:  # noqa: ANN401 - as written by users
    """Scale a recipe's milestones; invalid values stay as they are, for the validation."""
    milestones, before = recipe["milestones"], recipe.get("epochs")
    sound = isinstance(milestones, list | tuple) and all(isinstance(m, int) for m in milestones)
    if not (sound and isinstance(before, int) and before > 0 and isinstance(epochs, int)):
        return milestones
    return list(scaled(milestones, before, epochs))


def merge_experiments(below: Layer, above: Layer) -> Layer:
    """Merge two experiments; if ``above`` has another method, it replaces all method settings."""
    merged = merge(below, {key: value for key, value in above.items() if key != "method"})
    if "method" in above:
        merged["method"] = _merge_methods(below.get("method"), above["method"])
    return merged


def _merge_methods(below: Any, above: Any) -> Any:  # noqa: ANN401 - as written by the user
    under, over = as_method(below), as_method(above)
    if not isinstance(over, Mapping) or not isinstance(under, Mapping):
        return over
    other = "name" in over and over["name"] != under.get("name", "grace")
    return dict(over) if other else merge(under, over)


def backbone_for(layers: Sequence[Layer], method: str) -> Layer:
    """Merge the backbones of layers; a preset's backbone lies over that of its layer.

    Returns:
        ``{"backbone": …}``; empty if no layer has one.
    """
    found: Layer = {}
    for layer in layers:
        presets = layer.get("methods")
        preset = presets.get(method) if isinstance(presets, Mapping) else None
        for holder in (layer, preset):
            if isinstance(holder, Mapping) and "backbone" in holder:
                found = merge(found, {"backbone": holder["backbone"]})
    return found


def of_every_method(rule: Mapping[str, Any], model: type[AnyMethodSettings]) -> Layer:
    """Return what the preset "*", which is for all methods, says of one of them.

    Its "*" is for every recipe that it does not name. Settings that the method does not have are
    left out, as are milestones where the method's own schedule has none; ``epochs`` below 1 are a
    share of the published ones.
    """
    found: Layer = {}
    for name, field in model.model_fields.items():
        given = rule.get(name)
        if field.annotation is Recipe:
            given = _as_recipe(rule.get("*") if given is None else given, field.get_default())
        if given is not None:
            found[name] = given
    return found


def _as_recipe(given: Any, default: Recipe) -> Any:  # noqa: ANN401 - as written by users
    if not isinstance(given, Mapping):
        return given
    recipe = dict(given)
    if recipe.get("schedule", default.schedule) != "multistep":
        recipe.pop("milestones", None)
    epochs = recipe.get("epochs")
    if isinstance(epochs, float) and 0 < epochs < 1:
        recipe["epochs"] = round(epochs * default.epochs)
    return recipe


def without_backbone(preset: Any) -> Layer:  # noqa: ANN401 - as written by the user
    """Return the method settings of a preset; empty if the preset is not a mapping."""
    given = preset if isinstance(preset, Mapping) else {}
    return {key: value for key, value in given.items() if key != "backbone"}


def as_method(value: Any) -> Any:  # noqa: ANN401 - as written by the user
    """Turn the name of a method into ``{"name": …}``, and ``None`` into an empty mapping."""
    if value is None:
        return {}
    return {"name": value} if isinstance(value, str) else value


def parse_overrides(overrides: Sequence[str]) -> tuple[Layer, list[Problem]]:
    """Read ``key.path=value`` texts; return one layer, and the problems.

    ``seed=N`` sets all four seeds; ``seeds.<name>=M`` overrides one of them.
    """
    layer: Layer = {}
    problems: list[Problem] = []
    pairs: list[tuple[str, str]] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.split(".")
        if (
            not equals
            or not all(part.strip() for part in parts)
            or len(parts) > yaml_text.MAX_DEPTH
        ):
            problems.append(f"'{text}' is no setting: write key.path=value, such as method=der")
        else:
            pairs.append((key.strip(), value))
    pairs.sort(key=lambda pair: pair[0] != "seed")
    for key, text in pairs:
        try:
            value = yaml_text.parse(text, f"{key}={text}")
        except GraceError as error:
            problems.append(str(error))
            continue
        if key == "seed":
            problems += _set_seeds(layer, value)
        else:
            _insert(layer, key.split("."), as_method(value) if key == "method" else value)
    return layer, problems


def _set_seeds(layer: Layer, value: object) -> list[Problem]:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        demand = "should be a whole number from 0; it sets all four seeds"
        return [WrongValue("seed", repr(value), demand)]
    for name in ("class_order", "initialisation", "data", "exemplars"):
        _insert(layer, ["seeds", name], value)
    return []


def _insert(layer: Layer, path: Sequence[str], value: object) -> None:
    for part in path[:-1]:
        below = layer.get(part)
        layer[part] = below if isinstance(below, dict) else {}
        layer = layer[part]
    under = layer.get(path[-1])
    both = isinstance(under, dict) and isinstance(value, dict)
    layer[path[-1]] = merge(under, value) if both else value  # type: ignore[arg-type]
