"""Learn a folder of images, or only examine it; torch is imported once there is work for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from grace.base.errors import GraceError
from grace.data.folder_tree import scan, split_folders
from grace.engine.progress import Progress
from grace.learner.document import Document
from grace.learner.recommend import BACKBONE_BYTES
from grace.learner.request import (
    LearnOptions,
    LearnResult,
    RequestedSettings,
    ResolvedCall,
    resolved,
)
from grace.learner.store import ModelStore

if TYPE_CHECKING:
    from grace.data.findings import Examination


def _in_use(store: ModelStore | None) -> Document | None:
    number = store.current() if store else None
    return store.document(number) if store and number is not None else None


def refuse_early(call: ResolvedCall) -> None:
    """Refuse images and ceilings that no update can get over, before anything is read.

    Raises:
        GraceError: naming what to change.
    """
    for part in split_folders(call.images):
        if part and call.model and call.model.resolve().is_relative_to(part.resolve()):
            raise GraceError(
                f"'{call.model}' lies in '{part}', where it would be taken for a class",
                "choose another directory for the learner",
            )
    names = {file.class_name for file in scan(call.images).files(is_test=False)}
    if call.store is None and len(names) == 1:
        raise GraceError(
            f"'{call.images}' has images of one class, '{min(names)}': the first update of a "
            "learner needs at least two",
            "add a folder with images of another class",
        )
    before = _in_use(call.store)
    max_mb, name = call.wanted.memory.max_mb, call.wanted.backbone.name
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
    refuse_early(call)
    from grace.learner.teach import teach

    return teach(call, progress)


@final
@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of examining images for a learner."""

    found: "Examination"
    passes: float | None
    """The most image passes of an update, as far as it is known."""
    chosen: Sequence[str]
    """What would be chosen for a new learner, and why; empty without images."""


def examine_call(call: ResolvedCall) -> Checked:
    """Find the problems of a call's images and settings, as far as no network is needed.

    Args:
        call: resolved with ``dry_run``, so that nothing was changed.

    Raises:
        GraceError: if the images are no folder.
    """
    # They import numpy and Pillow, which --help does not need.
    from grace.data.findings import Finding, examine

    before = _in_use(call.store)
    names = before.class_names if before else () if call.store else None
    found = examine(call.images, known_classes=names, **call.reading)
    if found.is_ready:
        try:
            refuse_early(call)
        except GraceError as error:
            early = Finding(severity="error", what=error.what, remedy=error.remedy)
            found = replace(found, findings=[early, *found.findings])
    chosen = call.chosen if found.num_images else ()
    return Checked(found=found, passes=call.wanted.budget.passes, chosen=chosen)
