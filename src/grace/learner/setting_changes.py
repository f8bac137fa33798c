"""Settings that changed from one version of a learner to the next. Torch-free."""

import json
from collections.abc import Collection
from typing import Annotated, Any, Self, final

from pydantic import BaseModel, ConfigDict, Field

from grace.settings.experiment import ExperimentSettings
from grace.settings.flat import flatten

Line = Annotated[str, Field(max_length=100, pattern=r"^[ -~]*$")]
"""Printable ASCII text."""


@final
class SettingChange(BaseModel):
    """One changed setting, as texts for people; a long value is cut."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Line
    """Dotted path."""
    before: Line
    after: Line

    @classmethod
    def of(cls, path: str, before: object, after: object) -> Self:
        """Describe a change of a setting.

        Args:
            path: dotted path of the setting.
            before: its value before.
            after: its value after.
        """
        return cls(path=_line(path), before=_line(shown(before)), after=_line(shown(after)))

    def __str__(self) -> str:
        """Return it as "memory.max_mb 4.0 → 8.0"."""
        return f"{self.path} {self.before} → {self.after}"


def differences(
    before: ExperimentSettings, after: ExperimentSettings, leave_out: Collection[str] = ()
) -> tuple[SettingChange, ...]:
    """List the settings that differ.

    Args:
        before: the settings before.
        after: the settings after.
        leave_out: sections that are not compared, such as ``engine``.
    """
    old, new = (flatten(each.model_dump(mode="json")) for each in (before, after))
    return tuple(
        SettingChange.of(path, old.get(path), new.get(path))
        for path in [*old, *(path for path in new if path not in old)]
        if path.partition(".")[0] not in leave_out and old.get(path) != new.get(path)
    )


def shown(value: Any) -> str:  # noqa: ANN401 - any setting
    """Return a setting's value as people write it."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def _line(text: str) -> str:
    plain = ascii(text)[1:-1]
    return plain if len(plain) <= 100 else f"{plain[:97]}..."
