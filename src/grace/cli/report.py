"""``grace report``, and what ``grace study`` and ``grace compare`` print of their results."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from grace.base.words import counted
from grace.cli import options
from grace.cli.console import emit, emit_json, say
from grace.cli.show import aligned
from grace.studies.claims import judge_claims
from grace.studies.frame import group_records, read_runs
from grace.studies.report import write_report
from grace.studies.results import Results, StudyResult
from grace.studies.study import notes_of
from grace.studies.table import (
    Table,
    claims_table,
    comparison_numbers,
    comparison_table,
    study_tables,
)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories, or folders of run directories."),
    ],
    output: Annotated[
        Path | None,
        options.option(
            "--output",
            "--out",
            "-o",
            help="File of the page (default: report.html). With --table the page is only "
            "written if this is given.",
        ),
    ] = None,
    table: Annotated[
        str | None,
        options.choice(
            choices=("csv", "latex"),
            show_default=False,
            help="Print the comparison table in this format.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare runs: one self-contained HTML page, or a table to paste."""
    records, left_out = read_runs(runs)
    for line in left_out:
        say(f"warning: left out: {line}", err=True)
    groups = group_records(records)
    shown = comparison_table(groups)
    if table == "csv":
        emit(comparison_numbers(groups).to_csv(index=False, lineterminator="\n"))
    elif table == "latex":
        emit(shown.to_latex())
    elif as_json:
        emit_json(table_json(shown))
    else:
        say(*table_lines(shown))
    if table is None or output is not None:
        path = write_report(records, output or Path("report.html"))
        say(
            f"report of {counted(len(records), 'run')}: {path}",
            err=table is not None or as_json,
        )


def show_result(made: StudyResult, *, as_json: bool) -> None:
    """Print the tables, claims, notes, failures and paths of a study."""
    results = Results(made)
    claims = judge_claims(results)
    tables = study_tables(results) if made.found else []
    if as_json:
        emit_json(
            {
                "study": made.study.name,
                "scale": results.at,
                "tables": [table_json(table) for table in tables],
                "claims": {judged.claim.id: judged.verdict for judged in claims},
                "failures": dict(made.failures),
                "notes": list(made.notes),
                "files": [str(path) for path in made.files],
            }
        )
        return
    for table in [*tables, *([claims_table(claims)] if claims else [])]:
        say(*table_lines(table), "")
    say(*notes_of(made))
    say(*(str(path) for path in made.files if path.suffix in (".html", ".csv")))


def table_lines(table: Table) -> Iterator[str]:
    """Yield a table as aligned lines, then its notes."""
    numbers = len(table.headings) - table.num_names
    yield table.name
    yield from aligned([table.headings, *table.rows], "<" * table.num_names + ">" * numbers)
    yield from table.notes


def table_json(table: Table) -> dict[str, Any]:
    """Return a table as JSON: a mapping of headings to texts for each row."""
    names = _unique(table.headings)
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    return {"name": table.name, "rows": rows, "notes": list(table.notes)}


def _unique(headings: Sequence[str]) -> list[str]:
    """Return headings of which no two are equal: "paper" becomes "Last (%) paper"."""
    names: list[str] = []
    for place, name in enumerate(headings):
        names.append(f"{headings[place - 1]} {name}" if headings.count(name) > 1 else name)
    return names
