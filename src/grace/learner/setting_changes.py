"""Settings that changed from one version of a learner to the next, and which can. Torch-free."""

import json
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Self, final

from pydantic import BaseModel, ConfigDict, Field

from grace.base.errors import GraceError
from grace.settings.experiment import ExperimentSettings
from grace.settings.layers import flatten
from grace.settings.recipe import Recipe

USED_DATA = (
    "image_size",
    "fit",
    "channels",
    "augmentation",
    "max_pixels",
    "skip_unreadable",
    "skip_duplicates",
)
"""Fields of ``data`` that have an effect on a learner."""
FIXED = {
    "name": "it is the name of the experiment that the learner was made from",
    "method.name": "another method cannot use what this one has learnt",
    "backbone": "its weights belong to that backbone",
    "data.image_size": "its network and the images that it keeps have that size",
    "data.fit": "the images that it has learnt and keeps were made squares in that way",
    "data.channels": "its network and the images that it keeps have these channels",
    "seeds": "its random draws have followed from them",
}
"""Settings, or sections of them, that cannot change once a learner exists, and why."""

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


def why_fixed(path: str) -> str | None:
    """Return why a setting of a saved learner cannot change; ``None``: it can."""
    return FIXED.get(path) or FIXED.get(path.partition(".")[0])


def is_idle(path: str) -> bool:
    """Return ``True`` for a setting that only experiments use: here the images decide."""
    room, _, name = path.partition(".")
    return (
        room in ("scenario", "description", "probe")
        or path == "seeds.class_order"
        or (room == "data" and name not in USED_DATA)
    )


def is_limit(path: str) -> bool:
    """Return ``True`` for a setting that says which images are refused, not what is learnt."""
    return path in ("data.max_pixels", "data.skip_unreadable", "data.skip_duplicates")


def is_recipe(path: str) -> bool:
    """Return ``True`` for a setting that says how a phase is optimised."""
    parts = path.split(".")
    return len(parts) == 3 and parts[0] == "method" and parts[2] in Recipe.model_fields


def is_pace(path: str) -> bool:
    """Return ``True`` for a setting that says how long or how a phase is optimised."""
    return is_recipe(path) or path.startswith("budget.")


def lasting(changes: Iterable[SettingChange]) -> str:
    """Return in words the changes that an interrupted update must keep when it goes on."""
    return "; ".join(str(change) for change in changes if not is_pace(change.path))


def refuse_fixed(
    before: ExperimentSettings, after: ExperimentSettings, whose: str, remedy: str
) -> None:
    """Refuse a change of a setting that cannot change; ``whose`` names the learner.

    Raises:
        GraceError: naming the first such setting and the reason.
    """
    old, new = (flatten(each.model_dump(mode="json")) for each in (before, after))
    # A change of the method changes its other settings too: name the method.
    for path in sorted(new, key=lambda path: path != "method.name"):
        why = why_fixed(path)
        if why is not None and not is_idle(path) and old.get(path) != new[path]:
            raise GraceError(
                f"{whose} was made with {path} {shown(old.get(path))}, and '{path}="
                f"{shown(new[path])}' cannot change it: {why}",
                remedy,
            )
