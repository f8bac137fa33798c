"""What a learner is to be made as, and whether one that is there was made so. Torch-free."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import typer

from grace.cli._errors import one_line_warnings
from grace.configs._merge import parse_overrides
from grace.configs.experiment import EngineSettings, ExperimentSettings, MemorySettings
from grace.configs.flat import flatten
from grace.configs.load import load_experiment
from grace.configs.methods import AnyMethodSettings
from grace.configs.recipe import Recipe, completed
from grace.text.refusals import GraceError

OPTIONS = {
    "--method": "method",
    "--backbone": "backbone.name",
    "--memory": "memory.size",
    "--max-mb": "memory.max_mb",
    "--image-size": "data.image_size",
    "--channels": "data.channels",
    "--seed": "seed",
    "--validation": "memory.validation",
}
"""Options of ``grace learn`` that stand for settings."""

USED_DATA = ("image_size", "channels", "augmentation", "skip_unreadable", "skip_duplicates")


@final
@dataclass(frozen=True)
class Wish:
    """How a call asks for a learner to be made.

    Args:
        experiment: settings to start from; none was named.
        options: values by the names in ``OPTIONS``; none where it was not given.
        texts: KEY=VALUE.
    """

    experiment: str | None
    options: Mapping[str, object]
    texts: Sequence[str]

    @cached_property
    def given(self) -> dict[str, str]:
        """Map the dotted path of everything that is asked for to how it was written.

        Raises:
            ValueError: if an option and a text set the same.
        """
        found: dict[str, str] = {}
        for option, value in self._options().items():
            for path in flatten(parse_overrides([_override(option, value)])[0]):
                found[path] = f"{option} {value}"
        for text in self.texts:
            for path in flatten(parse_overrides([text])[0]):
                # seed=N gives way to one of the four seeds beside it.
                if found.get(path, "").startswith("--") and not text.startswith("seeds."):
                    raise GraceError(
                        f"'{found[path]}' and '{text}' set the same", "give one of them"
                    )
                found[path] = text
        return found

    def settings(self, method: str | None = None) -> ExperimentSettings:
        """Resolve it; what has no effect is told on stderr.

        Args:
            method: the method where none is asked for; none leaves it to the experiment.

        Raises:
            ConfigError: naming everything that is wrong.
        """
        overrides = [_override(option, value) for option, value in self._options().items()]
        if method is not None:
            overrides.insert(0, _override("--method", method))
        with one_line_warnings():
            settings = load_experiment(self.experiment or "folder", [*overrides, *self.texts])
        given, memory, data = self.given, settings.memory.model_dump(), settings.data
        for text in self.texts:
            if all(_is_idle(path) for path in given if given[path] == text):
                typer.echo(f"warning: '{text}' has no effect: all of IMAGES is learnt", err=True)
        if "memory.max_mb" in given and "memory.size" not in given:
            memory["size"] = None
        if not memory["validation"] and "memory.validation" not in given:
            memory["validation"] = 10
        if data.channels is None:
            data = data.model_copy(update={"channels": 3})
        return settings.model_copy(update={"memory": MemorySettings(**memory), "data": data})

    def engine(self, wanted: ExperimentSettings, saved: EngineSettings) -> EngineSettings | None:
        """Lay the engine's settings that are asked for over saved ones; none are asked for."""
        names = [path.removeprefix("engine.") for path in self.given if path.startswith("engine.")]
        asked = {name: getattr(wanted.engine, name) for name in names}
        return saved.model_copy(update=asked) if asked else None

    def method(
        self, wanted: ExperimentSettings, saved: AnyMethodSettings
    ) -> AnyMethodSettings | None:
        """Lay the recipes that are asked for over a saved method's; none are asked for."""
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

    def refuse_another(
        self, made: ExperimentSettings, model: Path, *, begun: bool
    ) -> ExperimentSettings:
        """Refuse what contradicts how a learner was made; return what is asked for.

        Without an experiment only what is given counts, with one all that it says. The engine's
        settings may change at any time, recipes once the first update is over.

        Args:
            made: how it was made.
            model: its directory.
            begun: whether its first update was interrupted.

        Raises:
            ValueError: naming the first setting that differs.
        """
        named = self.experiment is not None
        wanted = self.settings(None if named or "method.name" in self.given else made.method.name)
        mine, theirs = (flatten(each.complete_dump()) for each in (wanted, made))
        paths = dict.fromkeys(mine, f"--experiment {self.experiment}") if named else {}
        other = "add --discard to begin anew" if begun else "choose another --model"
        for path, text in {"name": "", "method.name": "", **paths, **self.given}.items():
            if not text or _is_idle(path) or path.startswith(("engine.", "description")):
                continue
            if path in self.given and _is_recipe(path) and not begun:
                continue
            if mine.get(path) != theirs.get(path):
                raise GraceError(
                    f"'{model}' was made with {path} {_shown(theirs.get(path))}, but '{text}' asks "
                    f"for {_shown(mine.get(path))}",
                    f"leave it out, or {other}",
                )
        return wanted

    def _options(self) -> dict[str, object]:
        return {name: value for name, value in self.options.items() if value is not None}


def _override(option: str, value: object) -> str:
    return f"{OPTIONS[option]}={json.dumps(value)}"


def _is_recipe(path: str) -> bool:
    """Whether a setting says how a phase is optimised."""
    parts = path.split(".")
    return len(parts) == 3 and parts[0] == "method" and parts[2] in Recipe.model_fields


def _is_idle(path: str) -> bool:
    """Whether only experiments have a use for a setting: the images that came decide."""
    room, _, name = path.partition(".")
    idle_data = room == "data" and name not in USED_DATA
    return room == "scenario" or path == "seeds.class_order" or idle_data


def _shown(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
