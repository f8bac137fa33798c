"""Examine a folder of images for a learner, without learning anything."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from grace.base.errors import GraceError, GraceWarning
from grace.data.findings import Examination, Finding, examine
from grace.engine.progress import Silence
from grace.learner.folder_update import FolderUpdate
from grace.learner.learner import Learner
from grace.learner.resolved_call import ResolvedCall


@final
@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of examining images for a learner."""

    found: Examination
    passes: float | None
    """The most image passes of the update, as far as it is known."""
    chosen: Sequence[str]
    """What would be chosen for a new learner, and why; empty without images."""


def examine_call(call: ResolvedCall) -> Checked:
    """Find the problems of a call's images.

    The images are ready exactly if the call would begin to train.

    Args:
        call: resolved with ``dry_run``, so that nothing was changed.

    Raises:
        GraceError: if the images are no folder.
    """
    learner, is_saved = _learner(call), call.store is not None
    depth, height, width = learner.shape
    channels: Literal[1, 3] = 1 if depth == 1 else 3
    data = learner.settings.data
    side = height if is_saved and height == width else data.image_size
    found = examine(
        call.images,
        known_classes=learner.class_names if is_saved else None,
        channels=channels,
        image_size=side,
        max_pixels=data.max_pixels,
        fit=data.fit,
        skip_unreadable=call.options.skip_unreadable or data.skip_unreadable,
        skip_duplicates=call.options.skip_duplicates or data.skip_duplicates,
    )
    if found.is_ready:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GraceWarning)
                FolderUpdate.read(call, Silence()).check()
        except GraceError as error:
            found = replace(found, findings=[_finding(error), *found.findings])
    chosen = call.chosen if found.num_images else ()
    return Checked(found=found, passes=call.wanted.budget.passes, chosen=chosen)


def _learner(call: ResolvedCall) -> Learner:
    """Load the learner of a call, or create one as the call would, for images of a likely size."""
    if call.store is not None:
        return Learner.load(call.store.path)
    data = call.wanted.data
    side = data.image_size or 64
    return Learner.create(call.wanted, shape=(data.channels or 3, side, side))


def _finding(error: GraceError) -> Finding:
    what = f"{error.where}: {error.what}" if error.where else error.what
    return Finding(
        severity="error",
        what=what,
        remedy=", or ".join(filter(None, [error.remedy, *map(str, error.others)])),
        setting=error.setting,
    )
