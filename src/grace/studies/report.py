"""One HTML page over any number of records; it needs no network and runs no script.

The template escapes every text, and a content security policy lets no script run, so that nothing
in a record (a class called ``<script>``) can.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import grace
from grace.base.atomic import write_text
from grace.base.errors import GraceError
from grace.base.files import read_head
from grace.base.words import counted, one_line
from grace.runs.model import RunRecord, TaskRecord
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import describe_settings, flatten
from grace.studies import figures
from grace.studies.frame import Group, frame_of, group_records
from grace.studies.table import Table, comparison_table

_MOST_RUNS = 1
"""How many runs are shown with all their tasks and settings: the page stays small."""
_MOST_ROWS = 200
"""How many rows of a table of tasks a page shows."""
_MOST_CHARACTERS = 2000
"""How many characters of one text a page shows."""
_MOST_PANELS = 8
"""How many experiments a figure shows."""
_TASKS = "Accuracies in percent; task-aware: each image's task is given. Sizes in bytes, time in s."
_MARK = b'<meta name="generator" content="grace report'


def write_report(records: Sequence[RunRecord], path: str | Path) -> Path:
    """Write the report of some runs to one HTML file.

    The page has the comparison table; accuracy, parameters and backbones per task; and of the
    first runs the accuracy matrix, confusion, saturation, tasks, settings and provenance.

    Args:
        records: finished or unfinished runs of any methods and experiments.
        path: file to write; an earlier report in its place is replaced.

    Raises:
        GraceError: if there is no run, or ``path`` is a file that is not a report.
        OSError: if the file cannot be written.
    """
    if not records:
        raise GraceError("no run to report on")
    return write_page(Path(path), report_page(records))


def report_page(
    records: Sequence[RunRecord],
    title: str = "Class-incremental learning report",
    lines: Sequence[str] = (),
    tables: Sequence[Table] = (),
    more: Mapping[str, str] | None = None,
) -> str:
    """Return the page of some runs.

    Args:
        records: the runs.
        title: of the page.
        lines: below the title.
        tables: in place of the comparison table.
        more: SVG figures by name, in place of those over tasks.
    """
    groups = group_records(records)
    drawn = _figures(groups) if more is None else more
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return render(
        "report.html.j2",
        version=grace.__version__,
        title=title,
        lines=[f"{counted(len(records), 'run')}, made {made} by grace {grace.__version__}", *lines],
        tables=tables or [comparison_table(groups)],
        figures=[(name, _safe(svg)) for name, svg in drawn.items() if svg],
        runs=[_run(record) for record in records[:_MOST_RUNS]],
    )


def write_page(target: Path, text: str) -> Path:
    """Write a page to a file; an earlier page in its place is replaced.

    Raises:
        GraceError: if there is a file that is no such page.
        OSError: if the file cannot be written.
    """
    if target.is_dir():
        raise GraceError(f"{target} is a directory", f"name a file, such as {target}/report.html")
    if target.exists() and _MARK not in read_head(target, f"'{target}'", 2000):
        raise GraceError(f"{target} exists and is no report: nothing was written; name another")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    return target


def render(name: str, **values: object) -> str:
    """Fill in a template of this folder; all texts are escaped, also unprintable characters."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return value if isinstance(value, Markup) else one_line(str(value), _MOST_CHARACTERS)

    environment = Environment(
        autoescape=True, finalize=shown, undefined=StrictUndefined, trim_blocks=True
    )
    text = files("grace.studies").joinpath("templates", name).read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def _safe(svg: str) -> object:
    """Mark a figure that matplotlib wrote, which escapes all texts in it."""
    from markupsafe import Markup

    return Markup(svg)  # noqa: S704 - see above


def _figures(groups: Sequence[Group]) -> Mapping[str, str]:
    """Return the figures over tasks: a panel for each experiment, a line for each group."""
    panels: dict[str, dict[str, Sequence[RunRecord]]] = {}
    for group in groups:
        if group.experiment in panels or len(panels) < _MOST_PANELS:
            panels.setdefault(group.experiment, {})[group.label] = group.records

    def accuracy(task: TaskRecord) -> float | None:
        return task.accuracy.all if task.accuracy else None

    return {
        "Accuracy per task": figures.over_tasks(panels, accuracy, "all classes seen (%)"),
        "Backbones per task": figures.over_tasks(panels, lambda t: t.backbones, "backbones"),
        "Parameters per task": figures.over_tasks(
            panels, lambda t: t.parameters.total / 1e6, "parameters (M)"
        ),
    }


def _run(record: RunRecord) -> Mapping[str, Any]:
    has_saturation = any(task.saturation is not None for task in record.tasks)
    drawn = [
        figures.matrices(record) if record.tasks else "",
        figures.saturation([record]) if has_saturation else "",
    ]
    return {
        "name": f"{record.info.experiment}: {record.method}, seed {record.seed}",
        "warnings": _warnings(record),
        "figures": [_safe(svg) for svg in drawn if svg],
        "tasks": _tasks(record),
        "settings": _settings(record),
        "facts": _provenance(record),
    }


def _warnings(record: RunRecord) -> list[str]:
    lines = []
    if not record.complete:
        done, total = len(record.tasks), len(record.info.task_sizes)
        why = f": {record.info.error}" if record.info.error else ""
        lines.append(f"This run is {record.info.status} after {done} of {total} tasks{why}.")
    if record.torn:
        lines.append("The last line of its record was cut off and is left out.")
    return [*lines, *record.info.notes]


def _tasks(record: RunRecord) -> Table:
    """Return a line for each task, as a frame of runs has it."""
    about_run = ["directory", "experiment", "method", "seed", "status"]
    found = frame_of([record]).drop(columns=about_run, errors="ignore")
    lines = found.head(_MOST_ROWS).itertuples(index=False)
    rows = tuple(tuple(map(_number, line)) for line in lines)
    more = [f"and {len(found) - len(rows)} more"] if len(found) > len(rows) else []
    headings = tuple(name.replace("_", " ") for name in found.columns)
    return Table("Tasks", headings, rows, (_TASKS, *more))


def _number(value: object) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _settings(record: RunRecord) -> Table:
    """Return the settings with their meanings; those of another version as they are."""
    try:
        described = describe_settings(ExperimentSettings.model_validate(record.info.config))
        rows = [(row.path, str(row.value), row.meaning) for row in described]
    except ValidationError:
        flat = flatten(record.info.config)
        rows = [(path, str(value)[:200], "") for path, value in flat.items()][:_MOST_ROWS]
    return Table("Settings", ("Setting", "Value", "Meaning"), tuple(rows), num_names=3)


def _provenance(record: RunRecord) -> Mapping[str, object]:
    info, data = record.info, record.info.dataset
    hardware = {name: value for name, value in info.hardware.items() if value is not None}
    return {
        "Directory": record.directory,
        "Status": info.status,
        "Started": info.started,
        "Finished": info.finished or "–",
        "Images": f"{data.num_train:,} training, {data.num_test:,} test, "
        f"{data.shape[1]}×{data.shape[2]} pixels, {data.shape[0]} channels"
        if data
        else "–",
        "Versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
        "Commit": info.commit or "–",
        "Hardware": ", ".join(f"{name} {value}" for name, value in hardware.items()),
        "Protocol fingerprint": info.fingerprints.get("protocol", "–"),
        "Run fingerprint": info.fingerprints.get("run", "–"),
    }
