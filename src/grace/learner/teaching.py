"""Teach a learner the images of a folder; the first call makes the learner."""

from pathlib import Path

from grace.configs.pretrained import refuse_random_features
from grace.engine.progress import Progress, Silence
from grace.home.creation import refuse_taken
from grace.learner.learn_call import LearnOptions, LearnResult
from grace.learner.requested import RequestedSettings
from grace.learner.unfinished import find_learner, is_empty


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
        requested: settings of a new learner; a saved learner must have been created with the same,
            but ``engine`` and recipes may change. ``None``: those of the experiment ``folder``.
        options: options of this update; ``None``: the defaults.
        progress: receives the events of the work.

    Raises:
        GraceError: for anything wrong with the settings, the images or the learner.

    Warns:
        GraceWarning: images are left out, or a setting has no effect.
    """
    model, images = Path(model), Path(images)
    requested, options = requested or RequestedSettings(), options or LearnOptions()
    store = find_learner(model, discard=options.discard)
    if store is None:
        refuse_taken(model)
        wanted = requested.settings()
        refuse_random_features(wanted)
    else:
        wanted = requested.checked(store.creation.settings, model, is_begun=is_empty(store))
    # Wrong settings are refused before the import of torch, which takes seconds.
    from grace.learner.folder_update import FolderUpdate

    shape = None if store is None else store.creation.shape
    settings = wanted if store is None else store.creation.settings
    update = FolderUpdate.read(model, images, settings, shape, options, progress or Silence())
    if store is None:
        return update.learn(update.create(settings))
    known = update.known_already(store)
    return known or update.learn(update.load(store, requested, wanted))
