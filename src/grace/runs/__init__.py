"""The record of a run on disk: what every table, plot and report is made from. Torch-free."""

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
