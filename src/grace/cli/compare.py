"""``grace compare``: one experiment with every method and several seeds, tables and a report."""

import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.cli import options
from grace.cli.options import split
from grace.cli.progress import StudyProgress
from grace.cli.report import show_result
from grace.studies import study as studies
from grace.studies.workers import workers_here


def compare(
    arguments: Annotated[
        list[str] | None,
        options.argument(
            metavar="EXPERIMENT|KEY=VALUE",
            help="A packaged experiment or a YAML file (default: digits), then settings for every "
            "run. A method's own are those of its preset: methods.der.grow.epochs=10.",
        ),
    ] = None,
    methods: Annotated[str, options.option(help="Methods, comma-separated. Default: all.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds: 1,2,3 or 1-3.")] = "1-3",
    jobs: Annotated[
        int | None,
        options.option(min=1, help="Runs at a time. Default: as many as cores and memory allow."),
    ] = None,
    out: Annotated[
        Path | None,
        options.option(
            help="Directory of the results; an interrupted comparison in it is continued. "
            "Default: comparisons/EXPERIMENT."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one experiment with many methods and seeds; write tables and a report.

    Interrupted at any moment, the same command goes on where it stopped.
    """
    with ended_like_ctrl_c():
        experiment, overrides = split(arguments or ())
        with StudyProgress() as progress:
            result = studies.compare(
                experiment,
                overrides,
                methods=list(options.words(methods)),
                seeds=numbers(seeds),
                directory=out,
                watcher=progress,
                workers=partial(workers_here, at_once=jobs),
                command=shlex.join(["grace", *sys.argv[1:]]),
            )
        show_result(result, as_json=as_json)
        if result.failures:
            raise typer.Exit(1)


def numbers(text: str) -> list[int]:
    """Read a list of seeds and ranges: "1,2,5", "1-3" or "1-3,7".

    Raises:
        GraceError: if the text is not such a list.
    """
    found_numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if found is None:
            raise GraceError(f"--seeds {text!r}", "write seeds as 1,2,3 or 1-3")
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        if not first <= last < first + 1000:
            raise GraceError(
                f"--seeds {text!r}: {part.strip()} is not a range of at most 1000 seeds",
                "write it as FIRST-LAST",
            )
        found_numbers += range(first, last + 1)
    return found_numbers


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the runs are stopped too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
