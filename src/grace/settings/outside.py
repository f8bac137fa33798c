"""Find methods of other packages through the entry points of the group ``grace.methods``.

The name of an entry point is the method's name; its value is the place of the settings model:
``aligned = "package.settings:AlignedSettings"``. A fault in one package disables only its method.
"""

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, final, get_args, get_origin

from pydantic import ValidationError

from grace.settings.methods import AnyMethodSettings
from grace.settings.traits import Traits

GROUP = "grace.methods"
"""The group of entry points in which packages name their methods."""


@final
@dataclass(frozen=True)
class OutsideMethods:
    """The methods of other installed packages."""

    models: Mapping[str, type[AnyMethodSettings]]
    """Settings models by method name, in the order of the names."""
    refused: Mapping[str, str]
    """Names of methods that cannot be used, with the reason."""
    notes: Sequence[str]
    """Problems, one line each."""


def installed() -> Iterable[EntryPoint]:
    """List the entry points of all installed packages that name a method."""
    return entry_points(group=GROUP)


def load_outside(found: Iterable[EntryPoint], taken: Collection[str]) -> OutsideMethods:
    """Import the settings models that entry points name, and check them.

    Args:
        found: entry points, one for each method of each package.
        taken: names of this package's own methods.

    Returns:
        The usable models; the names of the others with reasons; a note for each problem.
    """
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in sorted(found, key=lambda entry: (entry.name, _package(entry))):
        by_name.setdefault(entry.name, []).append(entry)
    models: dict[str, type[AnyMethodSettings]] = {}
    refused: dict[str, str] = {}
    notes: list[str] = []
    for name, entries in by_name.items():
        packages = " and ".join(f"'{_package(entry)}'" for entry in entries)
        if name in taken:
            notes.append(f"method '{_shown(name)}' of {packages} is left out: grace has its own")
            continue
        had_torch = "torch" in sys.modules
        if len(entries) > 1:
            reason: str | None = f"{packages} both bring it: uninstall one of them"
        else:
            reason = _load(entries[0], models)
        if reason is not None:
            refused[name] = reason if len(entries) > 1 else f"package {packages}: {reason}"
            notes.append(f"method '{_shown(name)}' cannot be used: {refused[name]}")
        if not had_torch and "torch" in sys.modules:
            notes.append(
                f"method '{_shown(name)}' of {packages} makes every command slow: its settings "
                "import torch"
            )
    return OutsideMethods(models, refused, notes)


def _load(entry: EntryPoint, models: dict[str, type[AnyMethodSettings]]) -> str | None:
    """Add the model of an entry point to ``models``; else return why it cannot be used."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", entry.name):
        return "a method's name has small letters, digits, '-' and '_' only, a letter first"
    try:
        model = entry.load()
        fault = _fault(model, entry)
    except (Exception, SystemExit) as error:  # Another's code may fail in any way.
        return _shown(f"'{entry.value}' fails: {type(error).__name__}: {error}")
    if fault is None:
        models[entry.name] = model
    return fault


def _fault(model: Any, entry: EntryPoint) -> str | None:  # noqa: ANN401 - whatever is there
    """Return why an object cannot be a method's settings model; ``None`` if it can."""
    if not (isinstance(model, type) and issubclass(model, AnyMethodSettings)):
        return _shown(
            f"'{entry.value}' is no settings model: derive it from "
            "grace.settings.methods.AnyMethodSettings"
        )
    name = model.model_fields["name"]
    if get_origin(name.annotation) is not Literal or get_args(name.annotation) != (entry.name,):
        return f'its settings need \'name: Literal["{entry.name}"] = "{entry.name}"\''
    if not isinstance(model.traits, Traits):
        return "the traits of its settings are none"
    summary, place = getattr(model, "summary", None), getattr(model, "implementation", None)
    if not isinstance(summary, str) or not summary.strip() or not summary.isprintable():
        return "its settings need a summary, one line of text"
    if not isinstance(place, str) or not re.fullmatch(r"[\w.]+:\w+", place):
        return "its settings need an implementation, 'package.module:Class'"
    try:
        model.model_validate({})
    except ValidationError as error:
        lacking = error.errors(include_url=False)[0]
        return _shown(f"its settings need defaults that are valid: {lacking['loc']}")
    return None


def _package(entry: EntryPoint) -> str:
    return _shown(entry.dist.name) if entry.dist else "unknown package"


def _shown(text: str) -> str:
    """Shorten a text of another package to one line of printable characters."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= 200 else f"{line[:199]}…"
