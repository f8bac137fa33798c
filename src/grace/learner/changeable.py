"""Which settings of a saved learner can change, and why others cannot. Torch-free."""

from collections.abc import Iterable, Mapping

from grace.base.errors import GraceError
from grace.learner.setting_changes import SettingChange, shown
from grace.settings.experiment import ExperimentSettings
from grace.settings.flat import flatten
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
    before: ExperimentSettings,
    after: ExperimentSettings,
    whose: str,
    written: Mapping[str, str],
    remedy: str,
) -> None:
    """Refuse a change of a setting that cannot change.

    Args:
        before: the learner's settings.
        after: those that it is asked to have.
        whose: the learner, in words.
        written: how the user wrote a setting, by its dotted path.
        remedy: what to do instead.

    Raises:
        GraceError: naming the first such setting and the reason.
    """
    old, new = (flatten(each.model_dump(mode="json")) for each in (before, after))
    # A change of the method changes its other settings too: name the method.
    for path in sorted(new, key=lambda path: path != "method.name"):
        why = why_fixed(path)
        if why is not None and not is_idle(path) and old.get(path) != new[path]:
            asked = written.get(path, f"{path}={shown(new[path])}")
            raise GraceError(
                f"{whose} was made with {path} {shown(old.get(path))}, and '{asked}' cannot "
                f"change it: {why}",
                remedy,
            )
