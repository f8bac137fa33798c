"""GRACE: class-incremental learning that grows, assesses and compresses its backbones.

The names in ``__all__`` are the public interface. Each is imported on first use, so that
``import grace`` is quick and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "BusyError",
    "ConfigError",
    "ConfigWarning",
    "DamagedError",
    "Evaluated",
    "ExperimentSettings",
    "GraceError",
    "GraceWarning",
    "LearnResult",
    "Learner",
    "NewerFormatError",
    "RunRecord",
    "StudyResult",
    "TaskRecord",
    "UpdateRecord",
    "__version__",
    "compare",
    "evaluate",
    "frame",
    "learn",
    "load_experiment",
    "read_record",
    "run",
    "write_report",
]

# Editors and type checkers read these imports; the running program uses ``_PLACES``.
if TYPE_CHECKING:
    from grace.base.errors import (
        BusyError,
        DamagedError,
        GraceError,
        GraceWarning,
        NewerFormatError,
    )
    from grace.learner.call import LearnResult
    from grace.learner.document import UpdateRecord
    from grace.learner.evaluate import Evaluated, evaluate
    from grace.learner.learn import learn
    from grace.learner.learner import Learner
    from grace.runs.model import RunRecord, TaskRecord
    from grace.runs.record import read_record
    from grace.runs.run import run
    from grace.settings.experiment import ExperimentSettings
    from grace.settings.load import ConfigError, ConfigWarning, load_experiment
    from grace.studies.frame import frame
    from grace.studies.report import write_report
    from grace.studies.results import StudyResult
    from grace.studies.study import compare
else:
    _PLACES = {
        "BusyError": "grace.base.errors:BusyError",
        "ConfigError": "grace.settings.load:ConfigError",
        "ConfigWarning": "grace.settings.load:ConfigWarning",
        "DamagedError": "grace.base.errors:DamagedError",
        "Evaluated": "grace.learner.evaluate:Evaluated",
        "ExperimentSettings": "grace.settings.experiment:ExperimentSettings",
        "GraceError": "grace.base.errors:GraceError",
        "GraceWarning": "grace.base.errors:GraceWarning",
        "LearnResult": "grace.learner.call:LearnResult",
        "Learner": "grace.learner.learner:Learner",
        "NewerFormatError": "grace.base.errors:NewerFormatError",
        "RunRecord": "grace.runs.model:RunRecord",
        "StudyResult": "grace.studies.results:StudyResult",
        "TaskRecord": "grace.runs.model:TaskRecord",
        "UpdateRecord": "grace.learner.document:UpdateRecord",
        "compare": "grace.studies.study:compare",
        "evaluate": "grace.learner.evaluate:evaluate",
        "frame": "grace.studies.frame:frame",
        "learn": "grace.learner.learn:learn",
        "load_experiment": "grace.settings.load:load_experiment",
        "read_record": "grace.runs.record:read_record",
        "run": "grace.runs.run:run",
        "write_report": "grace.studies.report:write_report",
    }

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _PLACES:
            raise AttributeError(f"module 'grace' has no attribute '{name}'")
        module, _, attribute = _PLACES[name].partition(":")
        globals()[name] = getattr(import_module(module), attribute)
        return globals()[name]

    def __dir__() -> list[str]:
        """List all public names, imported or not."""
        return sorted({*globals(), *__all__})
