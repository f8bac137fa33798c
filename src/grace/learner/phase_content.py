"""Hash everything that decides the outcome of a phase: phases of equal hash train the same."""

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from grace.base import strict_json, tensors
from grace.engine.phase import Part, Phase, Rounds


def content_address(phase: Phase | Rounds) -> str | None:
    """Hash everything in a phase: weights, modules, images, labels, recipe and objective.

    Functions are hashed by their source text. A phase cannot be hashed if a function holds values,
    such as a nested function, or if the phase has a rule, a teacher, an augmentation, rows or a
    function that runs after steps. The engine's seeds and augmentation are not part of the hash.

    Returns:
        64 hexadecimal digits; ``None`` for a phase that cannot be hashed, and for ``Rounds``.
    """
    if isinstance(phase, Rounds):
        return None
    acts = (phase.rule, phase.after_step, phase.teacher, phase.augmentation, phase.rows or None)
    objective = _source(phase.objective)
    classes = {type(module) for part in phase.parts.values() for module in part.module.modules()}
    sources = {f"{cls.__module__}.{cls.__qualname__}": _source(cls) for cls in classes}
    if any(act is not None for act in acts) or None in (objective, *sources.values()):
        return None
    facts = {
        "name": phase.name,
        "recipe": phase.recipe.model_dump(mode="json"),
        "views": phase.views,
        "objective": objective,
        "images": phase.data.images.digest().hex(),
        "labels": _hash(phase.data.labels.cpu().numpy().tobytes()),
        "state": _hash(tensors.encode(phase.state)),
        "parts": {name: _facts(part) for name, part in phase.parts.items()},
        "modules": {name: sources[name] for name in sorted(sources)},
    }
    return _hash(strict_json.dump(facts))


def _facts(part: Part) -> dict[str, Any]:
    return {
        "form": repr(part.module),
        "weights": _hash(tensors.encode(part.module.state_dict())),
        "reads": list(part.reads),
        "trains": part.trains if isinstance(part.trains, bool) else sorted(part.trains),
        "mode": part.mode,
        "group": part.group,
    }


def _source(of: Callable[..., Any] | type[nn.Module]) -> str | None:
    """Return the text of a function or class; ``None`` if it also depends on other values."""
    if not (inspect.isfunction(of) or inspect.isclass(of)) or "<locals>" in of.__qualname__:
        return None
    if inspect.isfunction(of) and of.__closure__:
        return None
    return _text(of)  # type: ignore[arg-type]  # mypy: a class has the hash of its instances


@cache  # Finding one class parses its whole file.
def _text(of: Callable[..., Any] | type[nn.Module]) -> str | None:
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
