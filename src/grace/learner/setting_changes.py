"""Settings that changed from one version of a learner to the next, and which can. Torch-free."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field

from grace.base.errors import GraceError
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import flatten
from grace.settings.recipe import Recipe, setting_text

FIXED: Mapping[str, str] = {
    "name": "it is the name of the experiment that the learner was made from",
    "method.name": "another method cannot use what this one has learnt",
    "backbone.*": "its weights belong to that backbone",
    "data.image_size": "its network and the images that it keeps have that size",
    "data.fit": "the images that it has learnt and keeps were made squares in that way",
    "data.channels": "its network and the images that it keeps have these channels",
    "seeds.*": "its random draws have followed from them",
}
"""Settings that cannot change once a learner exists, and why."""

Effect = Literal["fixed", "none", "machine", "reading", "pace", "learning"]
_EFFECTS: Mapping[str, Effect] = {
    # Experiments use them; in a learner the images decide.
    **dict.fromkeys(("scenario.*", "description", "probe.*", "seeds.class_order"), "none"),
    **dict.fromkeys(FIXED, "fixed"),
    # How work is carried out; which images are refused; how long and how a phase is optimised.
    "engine.*": "machine",
    "data.max_pixels": "reading",
    "data.skip_*": "reading",
    "budget.*": "pace",
    **dict.fromkeys((f"method.*.{name}" for name in Recipe.model_fields), "pace"),
    "data.augmentation": "learning",
    "data.*": "none",
}
"""What a change of a setting does to a saved learner: the first pattern that fits decides."""

Line = Annotated[str, Field(max_length=100, pattern=r"^[ -~]*$")]
"""Printable ASCII text."""


def effect(path: str) -> Effect:
    """Return what a change of a setting does to a saved learner."""
    found = (own for pattern, own in _EFFECTS.items() if fnmatchcase(path, pattern))
    return next(found, "learning")


@final
class SettingChange(BaseModel):
    """One changed setting, as texts for people; a long value is cut."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Line
    """Dotted path."""
    before: Line
    after: Line

    def __str__(self) -> str:
        """Return it as "memory.max_mb 4.0 → 8.0"."""
        return f"{self.path} {self.before} → {self.after}"


def differences(before: ExperimentSettings, after: ExperimentSettings) -> tuple[SettingChange, ...]:
    """List the settings that differ; the method first, as its other settings follow from it."""
    old, new = (flatten(each.model_dump(mode="json")) for each in (before, after))
    return tuple(
        SettingChange(path=_line(path), before=_line(old.get(path)), after=_line(new.get(path)))
        for path in sorted({**old, **new}, key=lambda path: path != "method.name")
        if old.get(path) != new.get(path)
    )


def _line(value: Any) -> str:  # noqa: ANN401 - any setting
    """Return a setting's value as people write it."""
    plain = ascii(setting_text(value))[1:-1]
    return plain if len(plain) <= 100 else f"{plain[:97]}..."


def refuse_fixed(
    before: ExperimentSettings,
    after: ExperimentSettings,
    whose: str,
    remedy: str = "leave it out, or create another learner",
) -> None:
    """Refuse a change of a setting that cannot change; ``whose`` names the learner.

    Raises:
        GraceError: naming the first such setting and the reason.
    """
    for change in differences(before, after):
        path = change.path
        if effect(path) == "fixed":
            why = next(why for pattern, why in FIXED.items() if fnmatchcase(path, pattern))
            raise GraceError(
                f"{whose} was made with {path} {change.before}, and '{path}={change.after}' "
                f"cannot change it: {why}",
                remedy,
            )


def lasting(changes: Iterable[SettingChange]) -> str:
    """Return in words the changes that an interrupted update must keep when it goes on."""
    return "; ".join(str(change) for change in changes if effect(change.path) != "pace")
