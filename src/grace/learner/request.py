"""A call of ``learn``: find the learner, resolve its settings, refuse settings that cannot be.

Nothing here imports torch: what is wrong is said within a second.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from grace.base import atomic
from grace.base.errors import BusyError, GraceError
from grace.data.folder_tree import scan
from grace.learner.document import Document
from grace.learner.gate import Limits
from grace.learner.recommend import facts_of, reasons, recommend
from grace.learner.setting_changes import (
    differences,
    is_idle,
    is_limit,
    refuse_fixed,
)
from grace.learner.store import ModelStore, refuse_taken
from grace.settings.experiment import EngineSettings, ExperimentSettings, MemorySettings
from grace.settings.layers import flatten, parse_overrides
from grace.settings.load import ConfigWarning, change_settings, load_experiment
from grace.settings.pretrained import refuse_random_features, with_lower_rates, with_weights

HELD_OUT = 50
"""Default of ``memory.validation`` for a learner; at most a fifth of a class's images."""


@final
@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """Options of one update; they are not part of the learner's settings.

    Args:
        max_drop: percentage points of accuracy that the old classes may lose on their held-out
            images; an update that costs more is rejected. ``None``: no limit.
        max_class_drop: the same for every old class; the paired test must show the loss.
        min_new: accuracy in percent that the new classes must reach.
        skip_unreadable: leave unreadable images out instead of refusing them.
        skip_duplicates: leave out images that are in two places instead of refusing them.
        discard: drop an interrupted update before this one.
        again: learn images that have been learnt already.
        max_disk_mb: megabytes (10⁶ bytes) that all versions together may take afterwards; the
            oldest are removed. Fewer: fewer versions to roll back to. ``None``: all are kept.
    """

    max_drop: float | None = None
    max_class_drop: float | None = None
    min_new: float | None = None
    skip_unreadable: bool = False
    skip_duplicates: bool = False
    discard: bool = False
    again: bool = False
    max_disk_mb: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits outside 0 to 100."""
        Limits(self.max_drop, self.max_class_drop, self.min_new)

    @property
    def limits(self) -> Limits:
        """What the update may cost."""
        return Limits(self.max_drop, self.max_class_drop, self.min_new)


@final
@dataclass(frozen=True, kw_only=True)
class LearnResult:
    """The version that holds the images of a call, and what the call changed.

    Args:
        model: the learner's home.
        document: the version that holds the update.
        is_new: this call made that version; otherwise it was there before.
        in_use: number of the version in use now.
        was_in_use: number of the version in use before; ``None``: the learner is new.
        class_names: classes of the given images, sorted.
        pruned: numbers of the versions that were removed for ``max_disk_mb``.
        chosen: what was chosen for a new learner, and why; empty for any other learner.
    """

    model: Path
    document: Document
    is_new: bool
    in_use: int
    was_in_use: int | None
    class_names: Sequence[str]
    pruned: Sequence[int] = ()
    chosen: Sequence[str] = ()

    @property
    def is_rejected(self) -> bool:
        """``True`` if the update was rejected and its version has not been put in use since."""
        return self.document.status == "rejected" and self.document.number > self.in_use


@final
@dataclass(frozen=True)
class RequestedSettings:
    """The settings that a call asks a learner to have.

    Args:
        experiment: experiment to start from, by name or file. ``None``: a new learner starts from
            ``folder``, a saved one from the settings it has.
        overrides: ``key.path=value`` texts over it.
        recommended: overrides below those of the user, for a new learner.
    """

    experiment: str | None = None
    overrides: Sequence[str] = ()
    recommended: Sequence[str] = ()

    @cached_property
    def given(self) -> dict[str, Any]:
        """The value of every dotted path that the overrides set."""
        return flatten(parse_overrides(self.overrides)[0])

    def settings(self) -> ExperimentSettings:
        """Resolve the settings of a new learner.

        Raises:
            ConfigError: naming everything that is wrong.

        Warns:
            ConfigWarning: a setting has no effect.
        """
        overrides = [*self.recommended, *with_weights(self.given), *self.overrides]
        settings = load_experiment(self.experiment or "folder", overrides)
        self._with_effect()
        memory, data = settings.memory.model_dump(), settings.data
        if "memory.max_mb" in self.given and "memory.size" not in self.given:
            memory["size"] = None
        if not memory["validation"] and "memory.validation" not in self.given:
            memory["validation"] = HELD_OUT
        if data.channels is None:
            data = data.model_copy(update={"channels": 3})
        settings = with_lower_rates(settings, self.given)
        return settings.model_copy(update={"memory": MemorySettings(**memory), "data": data})

    def _with_effect(self) -> list[str]:
        """Return the overrides that have an effect on a learner; warn about the others."""
        found = []
        for text in self.overrides:
            paths = flatten(parse_overrides([text])[0])
            if paths and all(map(is_idle, paths)):
                message = f"'{text}' has no effect: all images of the folder are learnt"
                warnings.warn(message, ConfigWarning, stacklevel=3)
            else:
                found.append(text)
        return found

    def engine(self, wanted: ExperimentSettings, saved: EngineSettings) -> EngineSettings | None:
        """Return the saved engine settings with the requested changes; ``None``: no changes."""
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
        change_settings(saved, self.overrides)  # Names all that is wrong.
        wanted = change_settings(saved, self._with_effect())
        whole = wanted if self.experiment is None else self.settings()
        changes = differences(saved, whole, leave_out=("engine", "description"))
        for change in sorted(changes, key=lambda change: change.path != "method.name"):
            path = change.path
            if is_begun and not (is_idle(path) or is_limit(path) or path == "budget.passes"):
                raise GraceError(
                    f"the first update of '{model}' was begun with {path} {change.before}, not "
                    f"{change.after}",
                    "leave it out, or add --discard to begin anew",
                )
        remedy = "leave it out, or choose another directory for the learner"
        refuse_fixed(saved, whole, f"'{model}'", remedy)
        return wanted


@final
@dataclass(frozen=True, kw_only=True)
class ResolvedCall:
    """A call of ``learn`` whose settings are resolved and allowed; no image is read yet.

    Args:
        model: the learner's home; ``None``: the images are only checked.
        images: folder of the images.
        store: the opened home; ``None``: there is no learner yet.
        requested: settings that the call asks for, over those that were chosen.
        wanted: the same, resolved.
        chosen: what was chosen for a new learner, and why.
        options: options of the update.
    """

    model: Path | None
    images: Path
    store: ModelStore | None
    requested: RequestedSettings
    wanted: ExperimentSettings
    chosen: Sequence[str]
    options: LearnOptions

    @property
    def reading(self) -> dict[str, Any]:
        """How the images are read: their shape and channels, and what is left out."""
        data, options = self.wanted.data, self.options
        channels, side = data.channels or 3, data.image_size
        if self.store is not None:
            depth, height, width = self.store.creation.shape
            channels = 1 if depth == 1 else 3
            side = height if side is not None and height == width else None
        return {
            "channels": channels,
            "image_size": side,
            "max_pixels": data.max_pixels,
            "fit": data.fit,
            "skip_unreadable": options.skip_unreadable or data.skip_unreadable,
            "skip_duplicates": options.skip_duplicates or data.skip_duplicates,
        }


def resolved(
    model: Path | None,
    images: Path,
    requested: RequestedSettings | None = None,
    options: LearnOptions | None = None,
    *,
    dry_run: bool = False,
) -> ResolvedCall:
    """Find the learner and resolve the settings of a call of ``learn``.

    Args:
        model: the learner's home; ``None``: a new learner that is made nowhere.
        images: folder of the images.
        requested: settings that the call asks for; ``None``: none.
        options: options of the update; ``None``: the defaults.
        dry_run: leave an interrupted update as it is, even if ``learn`` would drop it.

    Raises:
        GraceError: for anything wrong with the settings, the learner or the path of the images.

    Warns:
        GraceWarning: a setting has no effect.
    """
    requested, options = requested or RequestedSettings(), options or LearnOptions()
    store = None
    chosen: Sequence[str] = ()
    if model is not None:
        store = find_learner(model, discard=options.discard, dry_run=dry_run)
    if store is not None:
        wanted = requested.changed(store.settings(), store.path, is_begun=is_empty(store))
    else:
        # A learner without a version would have been removed.
        if model is not None and not (dry_run and (model / "model.json").exists()):
            refuse_taken(model)
        facts = None
        if requested.experiment is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConfigWarning)
                asked = requested.settings()
            facts = facts_of(scan(images), asked)
            overrides = recommend(facts, asked, requested.given.keys())
            requested = replace(requested, recommended=overrides)
        wanted = requested.settings()
        chosen = reasons(facts, wanted) if facts else ()
        refuse_random_features(wanted)
    return ResolvedCall(
        model=model,
        images=images,
        store=store,
        requested=requested,
        wanted=wanted,
        chosen=chosen,
        options=options,
    )


# A learner without a version has learnt nothing. It is kept only if work of its first update is
# saved; otherwise it is removed, so that the next call can create another learner.


def find_learner(model: Path, *, discard: bool = False, dry_run: bool = False) -> ModelStore | None:
    """Return the learner in a directory; ``None`` if there is none or it was removed as empty.

    An interrupted update is dropped if ``discard`` says so or none of its work is saved; with
    ``dry_run`` nothing is dropped or removed, but the same is returned.

    Raises:
        GraceError: if the learner is damaged, or busy when something must be dropped.
    """
    if not (model / "model.json").exists():
        return None
    store = ModelStore.open(model)
    unwanted = discard or not has_work(store)
    if is_empty(store) and unwanted:
        if not dry_run:
            remove_empty(store)
        return None
    if store.pending() and unwanted and not dry_run:
        _drop_update(store)
    return store


def drop_update(model: Path) -> bool:
    """Drop the interrupted update of a learner; return ``False`` if there was none.

    Raises:
        GraceError: if there is no such learner, or it is damaged or busy.
    """
    was_pending = ModelStore.open(model).pending() is not None
    find_learner(model, discard=True)
    return was_pending


def is_empty(store: ModelStore) -> bool:
    """Return ``True`` if a learner has no version."""
    return not store.numbers() and store.current() is None


def remove_empty(store: ModelStore) -> None:
    """Remove a learner that has no version; other files in its directory stay, and then it too."""
    path = store.path
    with store.changing():
        if not is_empty(store):
            return
        store.discard()
        store.remove_unused()
        # Whenever this stops, what is left is still an empty learner, or no learner at all.
        with suppress(OSError):
            (path / "objects").rmdir()
        atomic.remove(path / "model.json")
        with suppress(OSError):
            (path / "versions").rmdir()
        # The lock goes last: another process may hold the new one as soon as it is gone.
        atomic.remove(path / "lock")
        with suppress(OSError):
            path.rmdir()


@contextmanager
def cleaned_after_failure(store: ModelStore) -> Iterator[None]:
    """If an update fails without saved work, remove what it left behind.

    With saved work nothing is removed, and an interruption gets a note that it can be continued.
    """
    try:
        yield
    except BusyError:
        raise
    except BaseException as error:
        if has_work(store):
            if isinstance(error, KeyboardInterrupt):
                error.add_note("the same command will go on from here")
            raise
        with suppress(GraceError, OSError):
            if is_empty(store):
                remove_empty(store)
            elif store.pending():
                _drop_update(store)
        raise


def _drop_update(store: ModelStore) -> None:
    with store.changing():
        store.discard()


def has_work(store: ModelStore) -> bool:
    """Return ``True`` if some work of an interrupted update is saved."""
    return store.pending() is not None and any((store.path / "pending").glob("*.safetensors"))
