"""One run is a scenario, a method and a seed; its record is what every table is made from.

Reading a record needs no torch. Versions, the gate and ceilings belong to learners, not to runs.
"""

from grace.runs.model import (
    ClassifierRecord,
    DatasetRecord,
    PhaseRecord,
    RunInfo,
    RunRecord,
    TaskAwareRecord,
    TaskRecord,
)
from grace.runs.progress import RunProgress, SilentRun
from grace.runs.provenance import (
    collect_hardware,
    collect_versions,
    commit,
    fingerprints,
    settings_fingerprint,
)
from grace.runs.reading import find_runs, find_same_run, read_record, read_records
from grace.runs.writing import RecordWriter, describe_run, refuse_occupied, run_directory

__all__ = [
    "ClassifierRecord",
    "DatasetRecord",
    "PhaseRecord",
    "RecordWriter",
    "RunInfo",
    "RunProgress",
    "RunRecord",
    "SilentRun",
    "TaskAwareRecord",
    "TaskRecord",
    "collect_hardware",
    "collect_versions",
    "commit",
    "describe_run",
    "find_runs",
    "find_same_run",
    "fingerprints",
    "read_record",
    "read_records",
    "refuse_occupied",
    "run_directory",
    "settings_fingerprint",
]
