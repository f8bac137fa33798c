"""``grace report``: one page or one table from any number of records."""

from pathlib import Path
from typing import Annotated

import typer

from grace.base.words import counted
from grace.cli import options
from grace.cli.console import emit, say
from grace.cli.errors import one_line_errors
from grace.runs import read_records
from grace.studies import tables
from grace.studies.report import write_report

_TABLES = {"md": tables.to_markdown, "csv": tables.to_csv, "latex": tables.to_latex}
"""Writers of a comparison table, by format."""


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
            choices=tuple(_TABLES),
            show_default=False,
            help="Print the comparison table in this format.",
        ),
    ] = None,
) -> None:
    """Compare runs: one self-contained HTML page, or a table to paste."""
    with one_line_errors():
        records, left_out = read_records(runs)
        for line in left_out:
            say(f"warning: left out: {line}", err=True)
        if table is not None:
            emit(_TABLES[table](tables.comparison_table(records)))
        if table is None or output is not None:
            path = write_report(records, output or Path("report.html"))
            say(f"report of {counted(len(records), 'run')}: {path}", err=table is not None)
