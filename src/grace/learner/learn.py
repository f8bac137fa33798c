"""Learn a folder of images; torch is imported once there is work for it."""

from collections.abc import Sequence
from pathlib import Path

from grace.engine.progress import Progress
from grace.learner.call import LearnCall, LearnResult


def learn(
    model: str | Path,
    images: str | Path,
    overrides: Sequence[str] = (),
    *,
    experiment: str | None = None,
    max_drop: float | None = None,
    discard: bool = False,
    again: bool = False,
    max_disk_mb: float | None = None,
    progress: Progress | None = None,
) -> LearnResult:
    """Create a learner from a folder of images, or update the existing learner.

    After an interruption, the same call goes on where it stopped. Images that the version in use
    has learnt already are not learnt twice. A call that fails leaves the learner as it was.

    Args:
        model: the learner's home.
        images: folder with one folder of images per class, or with ``train/`` and ``test/`` of
            such folders.
        overrides: ``key.path=value`` texts. For a new learner, what is not given is chosen for the
            images and this machine; see docs/learner/defaults.md. For a saved one they are changes,
            which are saved with the update; backbone, method and size of images cannot change.
        experiment: name or file of the experiment that a new learner starts from; then nothing is
            chosen.
        max_drop: percentage points of accuracy that the old classes may lose on their held-out
            images; an update that costs more is rejected. ``None``: the
            learner's ``gate.max_drop`` decides.
        discard: drop an interrupted update before this one.
        again: learn images that have been learnt already.
        max_disk_mb: megabytes (10⁶ bytes) that all versions together may take afterwards; the
            oldest are removed. Fewer: fewer versions to roll back to. ``None``: all are kept.
        progress: receives the events of the work.

    Raises:
        GraceError: for anything wrong with the settings, the images or the learner.

    Warns:
        GraceWarning: images are left out, or a setting has no effect.
    """
    call = LearnCall(
        model=Path(model),
        images=Path(images),
        overrides=overrides,
        experiment=experiment,
        max_drop=max_drop,
        discard=discard,
        again=again,
        max_disk_mb=max_disk_mb,
    )
    return carry_out(call, progress)


def carry_out(call: LearnCall, progress: Progress | None = None) -> LearnResult:
    """Do what a call of ``learn`` asks for; errors and warnings as there."""
    call.refuse_early()
    from grace.learner.teach import teach

    return teach(call, progress)
