"""Teach a learner the images of a folder; the first call makes the learner."""

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from grace.configs.experiment import ExperimentSettings
from grace.configs.pretrained import refuse_random_features
from grace.engine.progress import Progress, Silence
from grace.home.creation import refuse_taken
from grace.home.setting_changes import differences
from grace.home.store import ModelStore
from grace.learner.changeable import is_limit, is_pace
from grace.learner.learn_call import LearnOptions, LearnResult
from grace.learner.recommending import with_recommendation
from grace.learner.requested import RequestedSettings
from grace.learner.unfinished import find_learner, is_empty
from grace.text.refusals import GraceWarning

if TYPE_CHECKING:
    from grace.learner.folder_update import FolderUpdate


def learn(
    model: str | Path,
    images: str | Path,
    requested: RequestedSettings | None = None,
    options: LearnOptions | None = None,
    progress: Progress | None = None,
) -> LearnResult:
    """Create a learner from a folder of images, or update the existing learner.

    After an interruption, the same call goes on where it stopped. Images that the version in use
    has learnt already are not learnt twice. A call that fails leaves the learner as it was.

    Args:
        model: the learner's home.
        images: folder with one folder of images per class, or with ``train/`` and ``test/`` of
            such folders.
        requested: settings of a new learner, or changes of a saved one, which are saved with the
            update; backbone, method and size of images cannot change. For a new learner, what is
            not given is chosen for the images and this machine, unless there is an experiment; see
            docs/learner/defaults.md.
        options: options of this update; ``None``: the defaults.
        progress: receives the events of the work.

    Raises:
        GraceError: for anything wrong with the settings, the images or the learner.

    Warns:
        GraceWarning: images are left out, or a setting has no effect.
    """
    call = resolved(Path(model), Path(images), requested, options)
    update, store = call.read(progress or Silence()), call.store
    if store is None:
        return replace(update.learn(update.create(call.wanted)), chosen=call.chosen)
    known = update.known_already(store)
    if known is None:
        return update.learn(update.load(store, call.requested, call.wanted))
    changes = differences(store.settings(), call.wanted, leave_out=("engine",))
    idle = [c for c in changes if not is_pace(c.path) and not is_limit(c.path)]
    if idle:
        texts = shlex.join(f"{change.path}={change.after}" for change in idle)
        warnings.warn(
            f"these images were learnt already, so that no setting changes: 'grace set "
            f"{shlex.quote(str(model))} {texts}' changes it",
            GraceWarning,
            stacklevel=2,
        )
    return known


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

    def read(self, progress: Progress) -> "FolderUpdate":
        """Read the images.

        Raises:
            GraceError: for anything wrong with the folder or an image.
        """
        # Wrong settings are refused before the import of torch, which takes seconds.
        from grace.learner.folder_update import FolderUpdate

        shape = None if self.store is None else self.store.creation.shape
        return FolderUpdate.read(
            self.model, self.images, self.wanted, shape, self.options, progress
        )

    def check(self) -> None:
        """Refuse what ``learn`` would refuse before any training; change nothing.

        Raises:
            GraceError: as ``learn``.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraceWarning)
            self.read(Silence()).check(self.store, self.requested, self.wanted)


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
        GraceError: for anything wrong with the settings or the learner.

    Warns:
        GraceWarning: a setting has no effect.
    """
    requested, options = requested or RequestedSettings(), options or LearnOptions()
    store: ModelStore | None = None
    chosen: Sequence[str] = ()
    if model is not None:
        store = find_learner(model, discard=options.discard, dry_run=dry_run)
    if store is not None:
        wanted = requested.changed(store.settings(), store.path, is_begun=is_empty(store))
    else:
        # A learner without a version would have been removed.
        if model is not None and not (dry_run and (model / "model.json").exists()):
            refuse_taken(model)
        requested, chosen = with_recommendation(requested, images)
        wanted = requested.settings()
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
