"""``grace report``: one page or one table from any number of records."""

from pathlib import Path
from typing import Annotated

import typer

from grace.base.words import counted
from grace.cli import options
from grace.cli.console import emit, emit_json, say
from grace.cli.errors import one_line_errors
from grace.cli.study_progress import table_json, table_lines
from grace.studies.frame import group_records, read_runs
from grace.studies.report import write_report
from grace.studies.table import comparison_numbers, comparison_table


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
    with one_line_errors():
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
