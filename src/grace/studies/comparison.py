"""A comparison: one experiment with several methods and seeds, a study with one protocol."""

from collections.abc import Sequence
from pathlib import Path

from grace.base.errors import GraceError
from grace.base.files import refuse_path
from grace.base.words import did_you_mean
from grace.settings.load import load_experiment
from grace.settings.registry import METHODS, REFUSED_METHODS, why_unknown
from grace.studies.cells import Selection
from grace.studies.results import StudyResult
from grace.studies.schema import (
    ProtocolSettings,
    RowSettings,
    ScaleSettings,
    StudySettings,
)
from grace.studies.study import Workers, make_study
from grace.studies.workers import Watcher, workers_here

_COLUMNS = ("last", "average", "forgetting", "backbones", "parameters", "seconds")


def compare(
    experiment: str = "digits",
    overrides: Sequence[str] = (),
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2, 3),
    directory: str | Path | None = None,
    watcher: Watcher | None = None,
    workers: Workers = workers_here,
    command: str = "",
) -> StudyResult:
    """Run one experiment with several methods and seeds; write tables and a report.

    After an interruption at any moment, the same call continues where it stopped.

    Args:
        experiment: a packaged experiment, or the path of a YAML file; each method takes its preset
            from it.
        overrides: ``key.path=value`` texts for every run; ``methods.der.grow.epochs=10`` changes
            the preset of one method.
        methods: names of the methods; empty: all.
        seeds: one run per seed and method; a seed sets all four seeds of a run.
        directory: of runs and tables; ``None``: ``comparisons/<experiment>``.
        watcher: receives the events of the runs.
        workers: returns the workers that carry out the runs.
        command: command line to name on the page.

    Raises:
        GraceError: for unknown or repeated methods or seeds, data or settings that no run can use,
            or a directory that holds something else.
    """
    study = study_of(experiment, methods, seeds)
    folder = Path(directory) if directory else Path("comparisons", study.name)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if names and "runs" not in names:
        raise GraceError(
            f"{folder} holds files that are not of a comparison", "choose another directory"
        )
    chosen = Selection(seeds=tuple(seeds), overrides=tuple(overrides))
    return make_study(
        study, chosen, folder, watcher, workers=workers, command=command, folder=folder
    )


def study_of(experiment: str, methods: Sequence[str], seeds: Sequence[int]) -> StudySettings:
    """Return a comparison as a study with one protocol and a row for each method."""
    chosen = list(methods) or list(METHODS)
    for name in chosen:
        if not name:
            raise GraceError("a method's name is empty", "name methods as grace,der")
        if name in REFUSED_METHODS:
            raise GraceError(why_unknown(name))
        if name not in METHODS:
            raise GraceError(
                f"no method '{name}'{did_you_mean(name, METHODS)} (known: {', '.join(METHODS)})"
            )
        if chosen.count(name) > 1:
            raise GraceError(f"method {name} is given twice", "name it once")
    if not seeds:
        raise GraceError("a comparison needs at least one seed", "give seeds such as 1,2,3")
    name = refuse_path(load_experiment(experiment).name, "the experiment's name")
    scale = ScaleSettings(
        protocols={name: ProtocolSettings(experiment=experiment)}, seeds=tuple(dict.fromkeys(seeds))
    )
    return StudySettings(
        name=name,
        title=f"Comparison: {name}",
        scales={"comparison": scale},
        rows={method: RowSettings(method=method) for method in chosen},
        columns=_COLUMNS,
        figures=("accuracy", "backbones"),
    )
