"""Layers of settings: a short difference laid over its parent."""

from collections.abc import Mapping, Sequence
from typing import Any

from grace.configs import _yaml
from grace.configs.recipe import scaled
from grace.text.refusals import GraceError

Layer = dict[str, Any]


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Layer:
    """Lay ``above`` over ``below``: mappings merge key by key, everything else is replaced.

    Milestones belong to a schedule and a number of epochs: a layer that leaves the multistep
    schedule drops those under it, one that only changes the epochs moves them to the same shares.
    A floor belongs to the cosine schedule.
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
    """Scale a recipe's milestones; values that are no recipe's are left for validation."""
    milestones, before = recipe["milestones"], recipe.get("epochs")
    sound = isinstance(milestones, list | tuple) and all(isinstance(m, int) for m in milestones)
    if not (sound and isinstance(before, int) and before > 0 and isinstance(epochs, int)):
        return milestones
    return list(scaled(milestones, before, epochs))


def merge_experiments(below: Layer, above: Layer) -> Layer:
    """Lay one experiment over another; another method's settings give way as a whole."""
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
    """Merge the layers' backbones; the one that a method's preset has lies over its own layer's.

    Returns:
        ``{"backbone": …}``, or nothing where no layer has one.
    """
    found: Layer = {}
    for layer in layers:
        presets = layer.get("methods")
        preset = presets.get(method) if isinstance(presets, Mapping) else None
        for holder in (layer, preset):
            if isinstance(holder, Mapping) and "backbone" in holder:
                found = merge(found, {"backbone": holder["backbone"]})
    return found


def without_backbone(preset: Any) -> Layer:  # noqa: ANN401 - as written by the user
    """Give what a preset holds for its method; nothing if it is none."""
    given = preset if isinstance(preset, Mapping) else {}
    return {key: value for key, value in given.items() if key != "backbone"}


def as_method(value: Any) -> Any:  # noqa: ANN401 - as written by the user
    """Turn a method's bare name into a mapping; nothing is an empty one."""
    if value is None:
        return {}
    return {"name": value} if isinstance(value, str) else value


def parse_overrides(overrides: Sequence[str]) -> tuple[Layer, list[str]]:
    """Read ``key.path=value`` texts into one layer, and what is wrong with them.

    ``seed=N`` sets all four seeds and gives way to a ``seeds.<one>=M`` beside it.
    """
    layer: Layer = {}
    problems: list[str] = []
    pairs: list[tuple[str, str]] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            problems.append(f"'{text}' is no setting: write key.path=value, such as method=der")
        else:
            pairs.append((key.strip(), value))
    pairs.sort(key=lambda pair: pair[0] != "seed")
    for key, text in pairs:
        try:
            value = _yaml.parse(text, f"{key}={text}")
        except GraceError as error:
            problems.append(str(error))
            continue
        if key == "seed":
            problems += _set_seeds(layer, value)
        else:
            _insert(layer, key.split("."), as_method(value) if key == "method" else value)
    return layer, problems


def _set_seeds(layer: Layer, value: object) -> list[str]:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return [f"seed = {value!r} should be a whole number from 0; it sets all four seeds"]
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
