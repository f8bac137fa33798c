"""Teach a learner the images of a folder; the first call makes the learner."""

import shlex
import warnings
from dataclasses import replace
from pathlib import Path

from grace.base.errors import GraceWarning
from grace.engine.progress import Progress, Silence
from grace.learner.changeable import is_limit, is_pace
from grace.learner.learn_call import LearnOptions, LearnResult
from grace.learner.requested import RequestedSettings
from grace.learner.resolved_call import resolved
from grace.learner.setting_changes import differences


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
    # Wrong settings are refused before the import of torch, which takes seconds.
    from grace.learner.folder_update import FolderUpdate

    update = FolderUpdate.read(call, progress or Silence())
    if call.store is None:
        return update.prune(replace(update.learn(update.create()), chosen=call.chosen))
    known = update.known_already(call.store)
    if known is None:
        return update.prune(update.learn(update.load(call.store)))
    changes = differences(call.store.settings(), call.wanted, leave_out=("engine",))
    idle = [c for c in changes if not is_pace(c.path) and not is_limit(c.path)]
    if idle:
        texts = shlex.join(f"{change.path}={change.after}" for change in idle)
        warnings.warn(
            f"these images were learnt already, so that no setting changes: 'grace set "
            f"{shlex.quote(str(model))} {texts}' changes it",
            GraceWarning,
            stacklevel=2,
        )
    return update.prune(known)
