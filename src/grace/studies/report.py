"""One self-contained HTML page over any number of records; it needs no network.

plotly's script stands in the page once. A content security policy lets exactly the page's two
scripts run, so that nothing in a record (a class called ``<script>``) can.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import grace
from grace.base.atomic import write_text
from grace.base.errors import GraceError
from grace.base.files import read_head
from grace.base.words import element, escape, join
from grace.runs import RunRecord
from grace.studies import figures
from grace.studies.figures import Figure, Style
from grace.studies.groups import Group
from grace.studies.run_panel import run_panel
from grace.studies.tables import (
    ComparisonTable,
    comparison_table,
    display_rows,
    headings,
    lone_class_note,
)


def write_report(records: Sequence[RunRecord], path: str | Path) -> Path:
    """Write the report of some runs to one HTML file.

    The page holds the comparison table; per experiment, accuracy and parameters per task,
    backbones with verdicts, saturation against threshold; per run, accuracy matrix, confusion,
    tasks, settings and provenance. Task-aware accuracies stand beside the class-incremental ones.

    Args:
        records: finished or unfinished runs of any methods and experiments.
        path: file to write; an earlier report in its place is replaced.

    Returns:
        The path.

    Raises:
        GraceError: if there is no run, or ``path`` is a file that is not a report.
        OSError: if the file cannot be written.
    """
    if not records:
        raise GraceError("no run to report on")
    return write_page(render_report(records), Path(path))


def render_report(records: Sequence[RunRecord]) -> str:
    """Return the report of some runs as HTML text (see :func:`write_report`)."""
    drawn: dict[str, Figure] = {}
    body, _ = runs_report(records, drawn)
    return page(join(_header(records), body), drawn)


def runs_report(
    records: Sequence[RunRecord], drawn: dict[str, Figure]
) -> tuple[str, Mapping[Path, int]]:
    """Return the sections of a report: comparison, figures of each experiment, every run.

    Args:
        records: at least one run.
        drawn: receives the figures.

    Returns:
        The HTML text, and by its directory the number that opens a run on the page.
    """
    table = comparison_table(records)
    groups = [row.group for row in table.rows]
    looks = figures.styles(groups)
    body = join(
        element("section", element("h2", "Comparison"), _comparison(table, looks)),
        *_experiments(groups, looks, drawn),
        _runs(groups, looks, drawn),
    )
    listed = [record for group in groups for record in group.listed]
    return body, {record.directory: number for number, record in enumerate(listed)}


def write_page(text: str, target: Path) -> Path:
    """Write a page to a file; an earlier page in its place is replaced.

    Args:
        text: what :func:`page` returned.
        target: the file; its folder is created if it does not exist.

    Returns:
        The path.

    Raises:
        GraceError: if there is a file that is no such page.
        OSError: if the file cannot be written.
    """
    _check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    return target


def _generator() -> str:
    return '<meta name="generator" content="grace report'


def _check_replaceable(path: Path) -> None:
    if path.is_dir():
        raise GraceError(f"{path} is a directory", f"name a file, such as {path / 'report.html'}")
    if path.exists():
        head = read_head(path, f"'{path}'", 2000)
        if _generator().encode() not in head:
            raise GraceError(f"{path} exists and is no report: nothing was written; name another")


def page(body: str, drawn: Mapping[str, Figure], title: str = "grace report") -> str:
    """Return a whole page that needs no network and runs no script but its own.

    Args:
        body: HTML text of the sections.
        drawn: figures by the keys of their cards.
        title: shown by the browser.
    """
    from plotly.offline import get_plotlyjs

    folder = files("grace.studies") / "page"
    style = (folder / "report.css").read_text(encoding="utf-8")
    scripts = [_inline(get_plotlyjs()), _inline((folder / "report.js").read_text(encoding="utf-8"))]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    )
    data = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{_generator()} {escape(grace.__version__)}">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="figures">{data}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def _inline(script: str) -> str:
    # The browser hashes the text after it has turned CRLF into LF.
    text = script.replace("\r\n", "\n")
    assert "</script" not in text.lower()
    return text


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(records: Sequence[RunRecord]) -> str:
    experiments = sorted({record.info.experiment for record in records})
    runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    line = f"{runs} of {', '.join(experiments)} · made {made} by grace {grace.__version__}"
    return element("header", element("h1", "Class-incremental learning report"), _p(line))


def _p(text: str, **attributes: str) -> str:
    return element("p", escape(text), **attributes)


def _comparison(table: ComparisonTable, looks: Sequence[Style]) -> str:
    titles = [
        element("th", escape(title), class_="wrap" if column else "text")
        for column, title in enumerate(headings(table)[1:])
    ]
    shown = list(zip(display_rows(table), looks, strict=True))
    rows: list[str] = []
    for experiment, members in groupby(shown, key=lambda pair: pair[0][0]):
        if len({cells[0] for cells, _ in shown}) > 1:
            heading = element("th", escape(experiment), class_="text group")
            rest = element("td", colspan=str(len(titles) - 1))
            rows.append(element("tr", heading, rest))
        rows += [_comparison_row(cells[1:], look) for cells, look in members]
    head = element("thead", element("tr", *titles))
    whole = element("table", head, element("tbody", *rows))
    several = any(len(row.group.complete) > 1 for row in table.rows)
    caption = "Mean ± standard deviation over runs that differ only in their seeds. "
    return element(
        "div",
        element("div", whole, class_="scroll comparison"),
        _p((caption if several else "") + _definitions(table), class_="caption"),
        *(_p(note, class_="note") for note in table.notes),
        class_="card",
    )


def _comparison_row(cells: Sequence[str], look: Style) -> str:
    label, *numbers = (escape(cell) for cell in cells)
    name = element("td", _swatch(look) + label, class_="text")
    return element("tr", name, *(element("td", number) for number in numbers))


def _definitions(table: ComparisonTable) -> str:
    has_task_aware = any(column.key == "task_aware_last" for column in table.columns)
    task_aware = (
        " TA (task-aware): the same if each image's task is given, so that only the classes of "
        "that task compete; do not compare it with class-incremental accuracies."
    )
    return (
        "Last: accuracy on all classes after the last task. Avg: mean of the accuracies after "
        "every task. Forgetting: mean drop of a task's accuracy from its best. "
        "BWT (backward transfer): mean change of a task's accuracy since it was learnt."
    ) + (task_aware if has_task_aware else "")


def _swatch(look: Style) -> str:
    dashes = {"dash": "6 4", "dot": "2 3", "dashdot": "6 3 2 3", "longdash": "9 4"}
    return (
        '<svg class="swatch" width="26" height="10" aria-hidden="true">'
        f'<line x1="1" y1="5" x2="25" y2="5" stroke="{look.colour}" stroke-width="3" '
        f'stroke-dasharray="{dashes.get(look.dash, "none")}"/></svg>'
    )


def _experiments(
    groups: Sequence[Group], looks: Sequence[Style], drawn: dict[str, Figure]
) -> list[str]:
    sections = []
    pairs = list(zip(groups, looks, strict=True))
    by_experiment = groupby(pairs, key=lambda pair: pair[0].experiment)
    for number, (experiment, members) in enumerate(by_experiment):
        listed = list(members)
        own, own_looks = [group for group, _ in listed], [look for _, look in listed]
        description = own[0].records[0].info.description
        sections.append(
            element(
                "section",
                element("h2", escape(experiment)),
                _p(description, class_="caption") if description else "",
                _legend(own, own_looks),
                _overview(own, own_looks, f"e{number}", drawn),
                class_="experiment",
            )
        )
    return sections


def _legend(groups: Sequence[Group], looks: Sequence[Style]) -> str:
    buttons = [
        element(
            "button",
            _swatch(look) + escape(group.label),
            type="button",
            data_group=look.key,
            aria_pressed="true",
        )
        for group, look in zip(groups, looks, strict=True)
    ]
    return element("div", *buttons, class_="legend")


def _overview(
    groups: Sequence[Group], looks: Sequence[Style], key: str, drawn: dict[str, Figure]
) -> str:
    band = " The band is one standard deviation over seeds."
    several = any(len(group.records) > 1 for group in groups)
    marks = _marks([record for group in groups for record in group.records])
    charts: list[tuple[str, str, Figure | None]] = [
        (
            "Accuracy per task",
            "On the test images of all classes seen so far." + (band if several else ""),
            figures.accuracy_figure(groups, looks),
        ),
        (
            "Task-aware accuracy per task",
            "Each image's task is given: only the classes of that task compete."
            + (band if several else ""),
            figures.task_aware_figure(groups, looks),
        ),
        (
            "Parameters per task",
            "Kept after the task, heads included.",
            figures.parameters_figure(groups, looks),
        ),
        (
            "Expansion",
            f"Backbones kept after the task. {marks}",
            figures.expansion_figure(groups, looks),
        ),
        (
            "Saturation against threshold",
            f"Normalised effective rank of the mergeable backbone (line) and threshold (dots). "
            f"{marks}",
            figures.saturation_figure(groups, looks),
        ),
    ]
    cards = [
        chart_card(title, caption, f"{key}-{number}", figure, drawn)
        for number, (title, caption, figure) in enumerate(charts)
        if figure is not None
    ]
    return element("div", *cards, class_="grid")


def _marks(records: Sequence[RunRecord]) -> str:
    """Explain the marks on lines; "compress (budget)" only if there is such a verdict."""
    verdicts = {task.verdict for record in records for task in record.tasks}
    under_ceiling = "▽ compress, for want of room to grow (budget), "
    budget = under_ceiling if "compress (budget)" in verdicts else ""
    return f"▲ grow, ▼ compress, {budget}■ first task."


def chart_card(title: str, caption: str, key: str, figure: Figure, drawn: dict[str, Figure]) -> str:
    """Return an HTML card with a chart, which the browser draws when it comes into view.

    Args:
        title: heading of the card.
        caption: text below the heading.
        key: key of the figure in ``drawn``.
        figure: plotly specification.
        drawn: receives the figure under ``key``.
    """
    drawn[key] = figure
    height: Any = figure["layout"]["height"]
    return element(
        "div",
        element("h3", escape(title)),
        _p(caption, class_="caption"),
        element("div", class_="chart", data_figure=key, style=f"height:{height}px"),
        class_="card",
    )


def _runs(groups: Sequence[Group], looks: Sequence[Style], drawn: dict[str, Figure]) -> str:
    panels, options = [], []
    listed = [
        (group, look, record)
        for group, look in zip(groups, looks, strict=True)
        for record in group.listed
    ]
    for number, (group, look, record) in enumerate(listed):
        charts = _run_charts(group, look, record, f"r{number}", drawn)
        panels.append(run_panel(record, number, charts))
        name = f"{group.experiment} · {group.label} · seed {record.seed} · {record.directory.name}"
        options.append(element("option", escape(name), value=str(number)))
    chooser = element(
        "div",
        element("label", "Run", for_="run"),
        element("select", *options, id="run"),
        class_="chooser",
    )
    return element("section", element("h2", "One run"), chooser, *panels)


def _run_charts(
    group: Group, look: Style, record: RunRecord, key: str, drawn: dict[str, Figure]
) -> str:
    charts: list[tuple[str, str, Figure | None]] = [
        (
            "Accuracy matrix",
            "After each task, on the classes of each task.",
            figures.matrix_figure(record),
        ),
        (
            "Task-aware accuracy matrix",
            "The same if each image's task is given." + _without_choice(record),
            figures.task_aware_matrix_figure(record),
        ),
        (
            "Confusion",
            "Share of each true class's test images, after the last task.",
            figures.confusion_figure(record),
        ),
        (
            "Saturation of this run",
            f"Saturation (line) against threshold (dots). {_marks([record])}",
            figures.run_saturation_figure(group, record, look) if len(group.listed) > 1 else None,
        ),
    ]
    return join(
        *(
            chart_card(title, caption, f"{key}-{place}", figure, drawn)
            for place, (title, caption, figure) in enumerate(charts)
            if figure is not None
        )
    )


def _without_choice(record: RunRecord) -> str:
    if not record.lone_class_tasks:
        return ""
    note = lone_class_note(record.lone_class_tasks)
    return f" {note[0].upper()}{note[1:]}."
