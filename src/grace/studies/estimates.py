"""Estimate how long runs take, from finished runs of the same stream. Imports no torch."""

from collections.abc import Sequence
from statistics import fmean

from grace.configs.experiment import ExperimentSettings
from grace.configs.recipe import Recipe
from grace.record import RunRecord

Stream = tuple[object, ...]


def seconds_of(
    settings: ExperimentSettings, runs: Sequence[tuple[ExperimentSettings, RunRecord]]
) -> float | None:
    """Estimate the seconds of a run.

    The mean of runs of the same method on the same stream; else, from all runs on this stream,
    seconds by images × epochs; ``None`` if there is no run on this stream.

    Args:
        settings: of the run.
        runs: finished runs with their settings.
    """
    stream = _stream(settings)
    known = [(found, record) for found, record in runs if _stream(found) == stream]
    like = [r.seconds for found, r in known if found.method.name == settings.method.name]
    if like:
        return fmean(like)
    rates = [
        record.seconds / work
        for found, record in known
        if (work := _images_by_epochs(found, record)) > 0
    ]
    if not rates:
        return None
    return fmean(rates) * _images_by_epochs(settings, known[0][1])


def bytes_of(records: Sequence[RunRecord]) -> int:
    """Estimate the bytes that the record of a run takes on disk: the mean of those known."""
    sizes = [
        sum(file.stat().st_size for file in record.directory.iterdir() if file.is_file())
        for record in records
    ]
    return round(fmean(sizes)) if sizes else 50_000


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
    dataset, sizes = like.info.dataset, like.info.task_sizes
    if dataset is None or not sizes:
        return 0.0
    epochs = {name: part.epochs for name, part in settings.method if isinstance(part, Recipe)}
    first = epochs.pop("base", 0)
    per_class = dataset.num_train / max(1, sum(sizes))
    later = sum(size * per_class + (settings.memory.size or 0) for size in sizes[1:])
    return first * sizes[0] * per_class + sum(epochs.values()) * later
