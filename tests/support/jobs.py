"""Jobs of small scripts, in place of runs."""

import sys
from pathlib import Path

from grace.settings.experiment import ExperimentSettings
from grace.studies.cells import Cell
from grace.studies.pool import Job

_SCRIPT = "import os, pathlib, sys, time; p = pathlib.Path(sys.argv[1]); "


def script_job(folder: Path, name: str, script: str, settings: ExperimentSettings) -> Job:
    """A job that runs a script, which knows ``os, pathlib, sys, time`` and the folder, ``p``."""
    return Job(
        cell=Cell(name, 1, settings),
        # Without site-packages a process starts at once.
        command=[sys.executable, "-S", "-c", _SCRIPT + script, str(folder)],
        log=folder / f"{name}.txt",
        num_tasks=lambda: 0,
    )
