"""A call of ``learn``: find the learner, resolve its settings, refuse what cannot be. Torch-free.

What is wrong with the settings, the learner or the ceiling is said within a second.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from grace.base import atomic
from grace.base.errors import BusyError, GraceError
from grace.data.folder_tree import split_folders
from grace.learner.document import Document
from grace.learner.gate import limits
from grace.learner.recommend import BACKBONE_BYTES, new_settings, recommended_settings
from grace.learner.setting_changes import differences, effect, refuse_fixed
from grace.learner.store import ModelStore, refuse_taken
from grace.settings.experiment import ExperimentSettings, GateSettings
from grace.settings.load import ConfigWarning, flatten, load_experiment, parse_overrides
from grace.settings.problems import refuse_missing_weights

if TYPE_CHECKING:
    from grace.data.decoding import Reading
    from grace.data.findings import Examination


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
@dataclass(kw_only=True)
class LearnCall:
    """A call of ``learn`` with its settings resolved and allowed; no pixel is read yet.

    Arguments and errors as in ``grace.learn``.
    """

    model: Path | None
    images: Path
    overrides: Sequence[str] = ()
    experiment: str | None = None
    max_drop: float | None = None
    discard: bool = False
    again: bool = False
    max_disk_mb: float | None = None
    dry_run: bool = False
    """Leave an interrupted update as it is, even if ``learn`` would drop it."""

    store: ModelStore | None = field(init=False, default=None)
    """The opened home; ``None``: there is no learner yet."""
    wanted: ExperimentSettings = field(init=False)
    """The settings that the call asks for."""
    chosen: Sequence[str] = field(init=False, default=())
    """What was chosen for a new learner, and why."""

    def __post_init__(self) -> None:
        if self.model is not None:
            self.store = find_learner(self.model, discard=self.discard, dry_run=self.dry_run)
        if self.store is not None:
            self.wanted = self._changed(self.store)
            return
        # A learner without a version would have been removed.
        if self.model is not None and not (self.dry_run and (self.model / "model.json").exists()):
            refuse_taken(self.model)
        if self.experiment is not None:
            self.wanted = new_settings(self.experiment, self.overrides)
        else:
            self.wanted, self.chosen = recommended_settings(self.images, self.overrides)
        self._with_effect()

    @property
    def gate(self) -> GateSettings:
        """What the update may cost."""
        return limits(self.wanted, self.max_drop)

    @property
    def reading(self) -> "Reading":
        """How the images are read: their shape and channels, and what is left out."""
        # It imports Pillow, which --help does not need.
        from grace.data.decoding import Reading

        reading = Reading.of(self.wanted.data)
        if self.store is None:
            return reading
        depth, height, width = self.store.creation.shape
        side = height if reading.size is not None and height == width else None
        return replace(reading, channels=1 if depth == 1 else 3, size=side)

    def _with_effect(self) -> list[str]:
        """Return the overrides that have an effect on a learner; warn about the others."""
        found = []
        for text in self.overrides:
            paths = flatten(parse_overrides([text]))
            if paths and all(effect(path) == "none" for path in paths):
                message = f"'{text}' has no effect: all images of the folder are learnt"
                warnings.warn(message, ConfigWarning, stacklevel=4)
            else:
                found.append(text)
        return found

    def _changed(self, store: ModelStore) -> ExperimentSettings:
        """Return a saved learner's settings with the changes that the call asks for.

        An experiment must agree with the learner in everything that cannot change. If the first
        update was interrupted, nothing that it depends on can change.
        """
        saved = store.settings()
        load_experiment(saved, self.overrides)  # Names all that is wrong.
        wanted = load_experiment(saved, self._with_effect())
        whole = new_settings(self.experiment, self.overrides) if self.experiment else wanted
        for change in differences(saved, whole) if is_empty(store) else ():
            path, has_part = change.path, effect(change.path) in ("fixed", "pace", "learning")
            if has_part and path != "budget.passes":
                raise GraceError(
                    f"the first update of '{store.path}' was begun with {path} {change.before}, "
                    f"not {change.after}",
                    "leave it out, or add --discard to begin anew",
                )
        remedy = "leave it out, or choose another directory for the learner"
        refuse_fixed(saved, whole, f"'{store.path}'", remedy)
        return wanted

    def refuse_early(self) -> None:
        """Refuse images and ceilings that no update can get over, before anything is read.

        Raises:
            GraceError: naming what to change.
        """
        for part in split_folders(self.images):
            if part and self.model and self.model.resolve().is_relative_to(part.resolve()):
                raise GraceError(
                    f"'{self.model}' lies in '{part}', where it would be taken for a class",
                    "choose another directory for the learner",
                )
        # It imports numpy and Pillow, which --help does not need.
        from grace.data.findings import sound_tree

        names = sound_tree(self.images, self.reading)[0].class_names
        if self.store is None and len(names) == 1:
            raise GraceError(
                f"'{self.images}' has images of one class, '{names[0]}': the first update of a "
                "learner needs at least two",
                "add a folder with images of another class",
            )
        before = _in_use(self.store)
        if before is None:
            refuse_missing_weights(self.wanted.backbone)
        refuse_too_low(self.wanted, before)

    def examine(self) -> "Examination":
        """Find the problems of the images and settings, as far as no network is needed.

        Raises:
            GraceError: if the images are no folder.
        """
        # They import numpy and Pillow, which --help does not need.
        from grace.data.findings import Finding, examine

        before = _in_use(self.store)
        names = before.class_names if before else () if self.store else None
        found = examine(self.images, self.reading, names)
        if found.is_ready:
            try:
                self.refuse_early()
            except GraceError as error:
                early = Finding("error", error.what, (), error.remedy)
                found = replace(found, findings=[early, *found.findings])
        return found


def _in_use(store: ModelStore | None) -> Document | None:
    number = store.current() if store else None
    return store.document(number) if store and number is not None else None


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
        with store.changing():
            store.discard()
    return store


def refuse_too_low(settings: ExperimentSettings, before: Document | None) -> None:
    """Refuse a ceiling below the weights that a version has, or that a first one will have."""
    max_mb, name = settings.memory.max_mb, settings.backbone.name
    least = BACKBONE_BYTES.get(name, 0)
    if before:
        least = sum(ref.bytes for ref in before.parts.values())
    if max_mb is not None and least > 1e6 * max_mb:
        raise GraceError(
            f"the weights of {name} alone take {least / 1e6:.3f} MB, and the ceiling is "
            f"{max_mb:.3f} MB",
            f"set memory.max_mb={2 * least / 1e6:.1f}"
            + ", or a smaller backbone.name" * (not before),
        )


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


def has_work(store: ModelStore) -> bool:
    """Return ``True`` if some work of an interrupted update is saved."""
    return store.pending() is not None and any((store.path / "pending").glob("*.safetensors"))


def remove_empty(store: ModelStore) -> None:
    """Remove a learner that has no version; other files in its directory stay, and then it too."""
    path = store.path
    with store.changing():
        if not is_empty(store):
            return
        store.discard()
        store.remove_unused()
        # Whenever this stops, what is left is still an empty learner, or no learner at all. The
        # lock goes last: another process may hold the new one as soon as it is gone.
        for entry in ("objects", "model.json", "versions", "lock", "."):
            if not (path / entry).is_dir():
                atomic.remove(path / entry)
                continue
            with suppress(OSError):
                (path / entry).rmdir()


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
        if isinstance(error, KeyboardInterrupt) and has_work(store):
            error.add_note("the same command will go on from here")
        with suppress(GraceError, OSError):
            find_learner(store.path)
        raise
