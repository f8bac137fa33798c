"""One HTML page over any number of records; it needs no network and runs no script.

The template escapes every text, and a content security policy lets no script run, so that nothing
in a record (a class called ``<script>``) can.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import grace
from grace.base.atomic import write_text
from grace.base.errors import GraceError
from grace.base.files import read_head
from grace.base.words import counted, one_line
from grace.runs.model import RunRecord
from grace.settings.load import flatten
from grace.studies.figures import drawn, matrices, saturation, study_figures
from grace.studies.frame import frame_of
from grace.studies.results import compared
from grace.studies.table import Table, study_tables

_MOST_ROWS = 200
"""How many rows of a table about one run a page shows."""
_TASKS = "Accuracies in percent; task-aware: each image's task is given. Sizes in bytes, time in s."
_MARK = b'<meta name="generator" content="grace report'


def write_report(records: Sequence[RunRecord], path: str | Path) -> Path:
    """Write the report of some runs to one HTML file.

    The page has a table for each experiment; accuracy and backbones per task; and of the first run
    the accuracy matrix, confusion, saturation, tasks, settings and provenance.

    Args:
        records: finished or unfinished runs of any methods and experiments.
        path: file to write; an earlier report in its place is replaced.

    Raises:
        GraceError: if there is no run, or ``path`` is a file that is not a report.
        OSError: if the file cannot be written.
    """
    if not records:
        raise GraceError("no run to report on")
    result = compared(records)
    title, lines = "Class-incremental learning report", result.notes
    page = report_page(records, title, lines, study_tables(result), study_figures(result))
    return write_page(Path(path), page)


def report_page(
    records: Sequence[RunRecord],
    title: str,
    lines: Sequence[str],
    tables: Sequence[Table],
    figures: Mapping[str, str],
) -> str:
    """Return the page of some runs: lines below the title, tables, SVG figures, the first run."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return render(
        files("grace.studies").joinpath("templates", "report.html.j2"),
        version=grace.__version__,
        title=title,
        lines=[f"{counted(len(records), 'run')}, made {made} by grace {grace.__version__}", *lines],
        tables=tables,
        figures=[(name, _safe(svg)) for name, svg in figures.items()],
        runs=[_run(record) for record in records[:1]],
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


def render(template: Traversable, most: int = 2000, **values: object) -> str:
    """Fill in a template; texts are escaped, and ``most`` characters of each are shown."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return value if isinstance(value, Markup) else one_line(str(value), most)

    environment = Environment(
        autoescape=True, finalize=shown, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)


def _safe(svg: str) -> object:
    """Mark a figure that matplotlib wrote, which escapes all texts in it."""
    from markupsafe import Markup

    return Markup(svg)  # noqa: S704 - see above


def _run(record: RunRecord) -> Mapping[str, Any]:
    """Return a run's warnings, figures, tasks, settings and origin for the template."""
    info, warnings = record.info, list(record.info.notes)
    if not record.complete:
        done, total = len(record.tasks), len(info.task_sizes)
        why = f": {info.error}" if info.error else ""
        warnings.insert(0, f"This run is {info.status} after {done} of {total} tasks{why}.")
    has_saturation = any(task.saturation is not None for task in record.tasks)
    panels = [*matrices(record), *([saturation(record)] if has_saturation else [])]
    about = ["directory", "experiment", "method", "seed", "status"]
    tasks = frame_of([record]).drop(columns=about, errors="ignore")
    headings = tuple(name.replace("_", " ") for name in tasks.columns)
    rows = [list(map(_number, line)) for line in tasks.head(_MOST_ROWS).itertuples(index=False)]
    notes = [_TASKS, *([f"the first {_MOST_ROWS} tasks"] if len(tasks) > _MOST_ROWS else [])]
    settings = [[path, str(value)] for path, value in flatten(info.config).items()]
    facts = info.model_dump(exclude={"config", "class_names", "task_sizes", "notes"})
    return {
        "name": f"{info.experiment}: {record.method}, seed {record.seed}",
        "warnings": warnings,
        "figures": [_safe(svg) for svg in [drawn(panels) if record.tasks else ""] if svg],
        "tasks": Table("Tasks", headings, rows, notes),
        "settings": Table("Settings", ("Setting", "Value"), settings[:_MOST_ROWS], num_names=2),
        "facts": {"directory": record.directory, **flatten(facts)},
    }


def _number(value: object) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
