"""A call of ``learn``: find the learner and resolve the settings; no image is read yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.learner.creation import refuse_taken
from grace.learner.learn_call import LearnOptions
from grace.learner.recommending import with_recommendation
from grace.learner.requested import RequestedSettings
from grace.learner.store import ModelStore
from grace.learner.unfinished import find_learner, is_empty
from grace.settings.experiment import ExperimentSettings
from grace.settings.pretrained import refuse_random_features


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
