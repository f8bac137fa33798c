"""GRACE: class-incremental learning that grows, assesses and compresses its backbones.

The names in ``__all__`` are the public interface. Each is imported on first use, so that
``import grace`` is quick and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "BusyError",
    "Comparison",
    "ConfigError",
    "ConfigWarning",
    "DamagedError",
    "Evaluated",
    "ExperimentSettings",
    "GraceError",
    "GraceWarning",
    "LearnOptions",
    "LearnResult",
    "Learner",
    "NewerFormatError",
    "RequestedSettings",
    "RunRecord",
    "TaskRecord",
    "UpdateRecord",
    "__version__",
    "compare",
    "evaluate",
    "learn",
    "load_experiment",
    "read_record",
    "run",
    "write_report",
]

# Editors and type checkers read these imports; the running program uses ``_PLACES``.
if TYPE_CHECKING:
    from grace.configs.experiment import ExperimentSettings
    from grace.configs.load import ConfigWarning, load_experiment
    from grace.configs.packaged import ConfigError
    from grace.experiment import run
    from grace.home.document import UpdateRecord
    from grace.learner.evaluated import Evaluated
    from grace.learner.folder_evaluation import evaluate
    from grace.learner.learn_call import LearnOptions, LearnResult
    from grace.learner.learner import Learner
    from grace.learner.requested import RequestedSettings
    from grace.learner.teaching import learn
    from grace.record import RunRecord, TaskRecord, read_record
    from grace.studies.comparison import Comparison
    from grace.studies.comparison import compare_methods as compare
    from grace.studies.report import write_report
    from grace.text.refusals import (
        BusyError,
        DamagedError,
        GraceError,
        GraceWarning,
        NewerFormatError,
    )
else:
    _PLACES = {
        "BusyError": "grace.text.refusals:BusyError",
        "Comparison": "grace.studies.comparison:Comparison",
        "ConfigError": "grace.configs.load:ConfigError",
        "ConfigWarning": "grace.configs.load:ConfigWarning",
        "DamagedError": "grace.text.refusals:DamagedError",
        "Evaluated": "grace.learner.evaluated:Evaluated",
        "ExperimentSettings": "grace.configs.experiment:ExperimentSettings",
        "GraceError": "grace.text.refusals:GraceError",
        "GraceWarning": "grace.text.refusals:GraceWarning",
        "LearnOptions": "grace.learner.learn_call:LearnOptions",
        "LearnResult": "grace.learner.learn_call:LearnResult",
        "Learner": "grace.learner.learner:Learner",
        "NewerFormatError": "grace.text.refusals:NewerFormatError",
        "RequestedSettings": "grace.learner.requested:RequestedSettings",
        "RunRecord": "grace.record:RunRecord",
        "TaskRecord": "grace.record:TaskRecord",
        "UpdateRecord": "grace.home.document:UpdateRecord",
        "compare": "grace.studies.comparison:compare_methods",
        "evaluate": "grace.learner.folder_evaluation:evaluate",
        "learn": "grace.learner.teaching:learn",
        "load_experiment": "grace.configs.load:load_experiment",
        "read_record": "grace.record:read_record",
        "run": "grace.experiment:run",
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
