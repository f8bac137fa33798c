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

# Editors and type checkers read these imports; the running program uses ``_MODULES``.
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
        "base.errors": "BusyError DamagedError GraceError GraceWarning NewerFormatError",
        "learner.call": "LearnResult",
        "learner.document": "UpdateRecord",
        "learner.evaluate": "Evaluated evaluate",
        "learner.learn": "learn",
        "learner.learner": "Learner",
        "runs.model": "RunRecord TaskRecord",
        "runs.record": "read_record",
        "runs.run": "run",
        "settings.experiment": "ExperimentSettings",
        "settings.load": "ConfigError ConfigWarning load_experiment",
        "studies.frame": "frame",
        "studies.report": "write_report",
        "studies.results": "StudyResult",
        "studies.study": "compare",
    }
    _MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _MODULES:
            raise AttributeError(f"module 'grace' has no attribute '{name}'")
        globals()[name] = getattr(import_module(f"grace.{_MODULES[name]}"), name)
        return globals()[name]

    def __dir__() -> list[str]:
        """List all public names, imported or not."""
        return sorted({*globals(), *__all__})
