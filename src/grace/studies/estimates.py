"""Estimate how long runs take, from finished runs of the same stream. Imports no torch."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

from grace.runs import RunRecord
from grace.settings.experiment import ExperimentSettings
from grace.settings.recipe import Recipe

Stream = tuple[object, ...]

FILES = ("run.json", "tasks.jsonl")
"""What a study writes of a run; the report page of ``grace run`` is hundreds of times as large."""


def seconds_of(
    settings: ExperimentSettings, runs: Sequence[tuple[ExperimentSettings, RunRecord]]
) -> float | None:
    """Estimate the seconds of a run.

    Seconds by images × epochs, the median of runs of the same method on the same stream, or else of
    all runs on it: runs that shared their machine with other work do not count for more.

    Args:
        settings: of the run.
        runs: finished runs with their settings.

    Returns:
        ``None`` if there is no run on this stream.
    """
    stream = _stream(settings)
    known = [(found, record) for found, record in runs if _stream(found) == stream]
    like = [pair for pair in known if pair[0].method.name == settings.method.name]
    work = [(record, _images_by_epochs(found, record)) for found, record in like or known]
    # Records of early versions do not say what their images were.
    counted = [(record, images) for record, images in work if images > 0]
    if not counted:  # A method that trains nothing.
        return median(record.seconds for _, record in like) if like else None
    rate = median(record.seconds / images for record, images in counted)
    return rate * _images_by_epochs(settings, counted[0][0])


def bytes_of(records: Sequence[RunRecord]) -> int:
    """Estimate the bytes that the record of a run takes on disk: the mean of those known."""
    sizes = [sum((record.directory / name).stat().st_size for name in FILES) for record in records]
    return round(fmean(sizes)) if sizes else 15_000


def _stream(settings: ExperimentSettings) -> Stream:
    """Return what decides how long an epoch takes."""
    data, scenario = settings.data, settings.scenario
    kept = ("source", "image_size", "max_classes", "max_train_per_class", "augmentation")
    return (
        *(getattr(data, name) for name in kept),
        scenario.base or scenario.increment,
        scenario.increment,
        settings.backbone,
    )


def _images_by_epochs(settings: ExperimentSettings, like: RunRecord) -> float:
    """Return the images × epochs of a run on the stream of another one.

    Args:
        settings: of the run.
        like: a finished run on the same stream.
    """
    dataset, sizes, method = like.info.dataset, like.info.task_sizes, settings.method
    if dataset is None or not sizes:
        return 0.0
    epochs = {name: part.epochs for name, part in method if isinstance(part, Recipe)}
    first = epochs.pop("base", 0)
    per_class = dataset.num_train / max(1, sum(sizes))
    if method.traits.memory == "all images":  # It starts again, with those of all tasks so far.
        seen = [*accumulate(sizes)]
        return first * per_class * (seen[-1] if method.trains_last_task_only else sum(seen))
    later = sum(size * per_class + (settings.memory.size or 0) for size in sizes[1:])
    return first * sizes[0] * per_class + sum(epochs.values()) * later
