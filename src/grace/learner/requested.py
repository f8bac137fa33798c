"""The settings that a call asks for, compared with those a learner was created with. Torch-free."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

from grace.base.errors import GraceError, Setting
from grace.learner.changeable import is_idle, is_limit, refuse_fixed
from grace.learner.setting_changes import differences
from grace.settings.experiment import EngineSettings, ExperimentSettings, MemorySettings
from grace.settings.flat import flatten
from grace.settings.layers import parse_overrides
from grace.settings.load import ConfigWarning, change_settings, load_experiment
from grace.settings.packaged import ConfigError
from grace.settings.pretrained import with_lower_rates, with_weights

HELD_OUT = 50
"""Default of ``memory.validation`` for a learner; at most a fifth of a class's images."""


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

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """Name wrong settings as the user wrote them, such as options of the command line."""
        try:
            yield
        except ConfigError as error:
            options = {text.partition("=")[0]: written for text, written in self.written.items()}
            raise error.as_written(options) from None

    def settings(self) -> ExperimentSettings:
        """Resolve the settings of a new learner.

        Raises:
            ConfigError: naming everything that is wrong.

        Warns:
            ConfigWarning: a setting has no effect.
        """
        given = self.given  # First: it refuses an option and an override that set the same.
        values = flatten(parse_overrides(self.overrides)[0])
        overrides = [*self.recommended, *with_weights(values), *self.overrides]
        with self._as_written():
            settings = load_experiment(self.experiment or "folder", overrides)
        memory, data = settings.memory.model_dump(), settings.data
        self._with_effect()
        if "memory.max_mb" in given and "memory.size" not in given:
            memory["size"] = None
        if not memory["validation"] and "memory.validation" not in given:
            memory["validation"] = HELD_OUT
        if data.channels is None:
            data = data.model_copy(update={"channels": 3})
        settings = with_lower_rates(settings, values)
        return settings.model_copy(update={"memory": MemorySettings(**memory), "data": data})

    def _with_effect(self) -> list[str]:
        """Return the overrides that have an effect on a learner; warn about the others."""
        found = []
        for text in self.overrides:
            paths = flatten(parse_overrides([text])[0])
            if not paths or not all(map(is_idle, paths)):
                found.append(text)
                continue
            warnings.warn(
                f"'{text}' has no effect: all images of the folder are learnt",
                ConfigWarning,
                stacklevel=3,
            )
        return found

    def engine(self, wanted: ExperimentSettings, saved: EngineSettings) -> EngineSettings | None:
        """Return the saved engine settings with the requested changes; ``None``: no changes.

        Args:
            wanted: the requested settings, resolved.
            saved: the learner's engine settings.
        """
        names = [path.removeprefix("engine.") for path in self.given if path.startswith("engine.")]
        asked = {name: getattr(wanted.engine, name) for name in names}
        return saved.model_copy(update=asked) if asked else None

    def changed(
        self, saved: ExperimentSettings, model: Path, *, is_begun: bool
    ) -> ExperimentSettings:
        """Return a saved learner's settings with the requested changes.

        An experiment must agree with the learner in everything that cannot change.

        Args:
            saved: the learner's settings.
            model: its home.
            is_begun: its first update was interrupted: only ``engine`` can change.

        Raises:
            ConfigError: naming everything that is wrong.
            GraceError: naming the first setting that cannot change.

        Warns:
            ConfigWarning: a setting has no effect.
        """
        given = self.given
        with self._as_written():
            change_settings(saved, self.overrides)  # Names all that is wrong.
            wanted = change_settings(saved, self._with_effect())
        asked = [(wanted, given)]
        if self.experiment is not None:
            whole, named = self.settings(), f"experiment {self.experiment}"
            paths = flatten(whole.model_dump(mode="json")).keys() - {"budget.passes"}
            asked.insert(0, (whole, dict.fromkeys(paths, named) | given))
        for settings, written in asked:
            if is_begun:
                _refuse_changes(saved, settings, model, written)
            remedy = "leave it out, or choose another directory for the learner"
            refuse_fixed(saved, settings, f"'{model}'", written, remedy)
        return wanted


def _refuse_changes(
    saved: ExperimentSettings, asked: ExperimentSettings, model: Path, written: Mapping[str, str]
) -> None:
    """Refuse other settings for a first update that was interrupted; arguments as above."""
    for change in differences(saved, asked, leave_out=("engine", "description")):
        text = written.get(change.path, "")
        if text and not is_idle(change.path) and not is_limit(change.path):
            raise GraceError(
                f"the first update of '{model}' was begun with {change.path} {change.before}, but "
                f"'{text}' asks for {change.after}",
                "leave it out",
                setting=Setting("discard", "true"),
            )
