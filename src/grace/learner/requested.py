"""The settings that a call asks for, compared with those a learner was created with. Torch-free."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

from grace.configs.experiment import (
    BudgetSettings,
    EngineSettings,
    ExperimentSettings,
    MemorySettings,
)
from grace.configs.flat import flatten
from grace.configs.layers import parse_overrides
from grace.configs.load import ConfigWarning, load_experiment
from grace.configs.methods import AnyMethodSettings
from grace.configs.pretrained import with_lower_rates, with_weights
from grace.configs.recipe import Recipe, completed
from grace.text.refusals import GraceError, Setting

USED_DATA = (
    "image_size",
    "channels",
    "augmentation",
    "max_pixels",
    "skip_unreadable",
    "skip_duplicates",
)
"""Fields of ``data`` that have an effect on a learner."""


HELD_OUT = 50
"""Default of ``memory.validation`` for a learner; at most a fifth of a class's images."""
_EARLIER_HELD_OUT = 10
"""The default of earlier versions of grace: learners that have it keep it."""


@final
@dataclass(frozen=True)
class RequestedSettings:
    """The settings that a call asks a learner to have.

    Args:
        experiment: experiment to start from, by name or file. ``None``: a new learner starts from
            ``folder``, a saved one from the settings it was created with.
        overrides: ``key.path=value`` texts over it.
        written: how the user wrote some of the overrides, for messages: the command line's options,
            as in ``{"memory.size=5": "--memory 5"}``. No other override may set the same.
        recommended: overrides below those of the user, for a new learner.
    """

    experiment: str | None = None
    overrides: Sequence[str] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    recommended: Sequence[str] = ()

    @cached_property
    def quiet(self) -> ExperimentSettings:
        """The settings of a new learner, resolved without warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            return self.settings()

    @cached_property
    def given(self) -> dict[str, str]:
        """Map the dotted path of every override to how it was written.

        Raises:
            GraceError: if an option and another override set the same.
        """
        found: dict[str, str] = {}
        options = set(self.written.values())
        for text in self.overrides:
            written = self.written.get(text, text)
            for path in flatten(parse_overrides([text])[0]):
                # seed=N gives way to one of the four seeds beside it.
                clash = found.get(path) in options and written not in options
                if clash and not text.startswith("seeds."):
                    raise GraceError(
                        f"'{found[path]}' and '{text}' set the same", "give one of them"
                    )
                found[path] = written
        return found

    def settings(self, method: str | None = None) -> ExperimentSettings:
        """Resolve the settings of a new learner.

        Args:
            method: the method where no override names one; ``None``: the experiment's.

        Raises:
            ConfigError: naming everything that is wrong.

        Warns:
            ConfigWarning: a setting has no effect.
        """
        values = flatten(parse_overrides(self.overrides)[0])
        overrides = [*self.recommended, *with_weights(values), *self.overrides]
        if method is not None:
            overrides.insert(0, f"method={json.dumps(method)}")
        settings = load_experiment(self.experiment or "folder", overrides)
        given, memory, data = self.given, settings.memory.model_dump(), settings.data
        for text in self.overrides:
            paths = [path for path, written in given.items() if written == text]
            if paths and all(map(_is_idle, paths)):
                warnings.warn(
                    f"'{text}' has no effect: all images of the folder are learnt",
                    ConfigWarning,
                    stacklevel=2,
                )
        if "memory.max_mb" in given and "memory.size" not in given:
            memory["size"] = None
        if not memory["validation"] and "memory.validation" not in given:
            memory["validation"] = HELD_OUT
        if data.channels is None:
            data = data.model_copy(update={"channels": 3})
        settings = with_lower_rates(settings, values)
        budget = settings.budget
        if budget.minutes is not None:
            fixed = tuple(sorted({*budget.fixed, *self._fixed_recipes()}))
            budget = budget.model_copy(update={"fixed": fixed})
        changed = {"memory": MemorySettings(**memory), "data": data, "budget": budget}
        return settings.model_copy(update=changed)

    def engine(self, wanted: ExperimentSettings, saved: EngineSettings) -> EngineSettings | None:
        """Return the saved engine settings with the requested changes; ``None``: no changes.

        Args:
            wanted: the requested settings, resolved.
            saved: the learner's engine settings.
        """
        names = [path.removeprefix("engine.") for path in self.given if path.startswith("engine.")]
        asked = {name: getattr(wanted.engine, name) for name in names}
        return saved.model_copy(update=asked) if asked else None

    def budget(self, wanted: ExperimentSettings, saved: BudgetSettings) -> BudgetSettings | None:
        """Return the saved budget with the requested changes; ``None``: no changes.

        Recipes whose epochs are given are no longer scaled.

        Args:
            wanted: the requested settings, resolved.
            saved: the learner's budget.
        """
        names = [path.removeprefix("budget.") for path in self.given if _is_budget(path)]
        asked = {name: getattr(wanted.budget, name) for name in names}
        fixed = tuple(sorted({*saved.fixed, *self._fixed_recipes()}))
        changed = saved.model_copy(update={"fixed": fixed} | asked)
        has_effect = changed.minutes is not None or saved.minutes is not None
        return changed if has_effect and changed != saved else None

    def _fixed_recipes(self) -> set[str]:
        """Return the names of the recipes whose epochs are given."""
        return {p.split(".")[1] for p in self.given if _is_recipe(p) and p.endswith(".epochs")}

    def method(
        self, wanted: ExperimentSettings, saved: AnyMethodSettings
    ) -> AnyMethodSettings | None:
        """Return a saved method's settings with the requested recipes; ``None``: no changes.

        Args:
            wanted: the requested settings, resolved.
            saved: the learner's method settings.
        """
        asked = [path.split(".")[1:] for path in self.given if _is_recipe(path)]
        if not asked:
            return None
        values, whole = saved.model_dump(), wanted.method.complete_dump()
        given: dict[str, dict[str, Any]] = {}
        for phase, name in asked:
            given.setdefault(phase, {})[name] = whole[phase][name]
        for phase, fields in given.items():
            values[phase] = completed(fields, Recipe(**values[phase]))
        return type(saved).model_validate(values)

    def checked(
        self, made: ExperimentSettings, model: Path, *, is_begun: bool
    ) -> ExperimentSettings:
        """Resolve the requested settings; refuse those that contradict the learner's.

        Without an experiment only the overrides are compared, with one all its settings. Engine
        settings may change at any time, recipes and budget once the first update is over.

        Args:
            made: the settings that the learner was created with.
            model: its home.
            is_begun: its first update was interrupted.

        Raises:
            GraceError: naming the first setting that differs.
        """
        named = self.experiment is not None
        wanted = self.settings(None if named or "method.name" in self.given else made.method.name)
        mine, theirs = (flatten(each.complete_dump()) for each in (wanted, made))
        paths = dict.fromkeys(mine, f"experiment {self.experiment}") if named else {}
        other = "choose another directory for the learner"
        anew = Setting("discard", "true") if is_begun else None
        for path, text in {"name": "", "method.name": "", **paths, **self.given}.items():
            if not text or _is_idle(path) or path.startswith(("engine.", "description")):
                continue
            changes = _is_recipe(path) or _is_budget(path)
            if path in self.given and changes and not is_begun:
                continue
            if path == "data.max_pixels":  # It decides what is refused, not what is learnt.
                continue
            is_default = path == "memory.validation" and path not in self.given
            if is_default and (mine[path], theirs[path]) == (HELD_OUT, _EARLIER_HELD_OUT):
                continue
            if mine.get(path) != theirs.get(path):
                raise GraceError(
                    f"'{model}' was made with {path} {_shown(theirs.get(path))}, but '{text}' asks "
                    f"for {_shown(mine.get(path))}",
                    "leave it out" if is_begun else f"leave it out, or {other}",
                    setting=anew,
                )
        return wanted


def _is_recipe(path: str) -> bool:
    """Return ``True`` for a setting that says how a phase is optimised."""
    parts = path.split(".")
    return len(parts) == 3 and parts[0] == "method" and parts[2] in Recipe.model_fields


def _is_budget(path: str) -> bool:
    return path.startswith("budget.")


def _is_idle(path: str) -> bool:
    """Return ``True`` for a setting that only experiments use: here the images decide."""
    room, _, name = path.partition(".")
    idle_data = room == "data" and name not in USED_DATA
    return room == "scenario" or path == "seeds.class_order" or idle_data


def _shown(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
