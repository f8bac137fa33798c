"""``grace run``: one experiment, from its settings to its record and report."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.cli import options
from grace.cli.console import say
from grace.cli.options import split
from grace.cli.progress import RichProgress
from grace.data.sources import refuse_missing
from grace.engine.launch import Launch
from grace.runs.model import RunRecord
from grace.runs.run import run as run_experiment
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import load_experiment
from grace.studies.report import write_report


def run(
    arguments: options.ExperimentSettings = None,
    out: Annotated[
        Path | None,
        options.option(
            help="Directory of the record; it must not exist yet, unless with --resume. "
            "Default: runs/EXPERIMENT/METHOD-sSEED-TIME-FINGERPRINT."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue an interrupted run: the one in --out, or the newest run with these "
            "settings under runs/. Without such a run, start one.",
        ),
    ] = False,
    first_tasks: Annotated[
        Path | None,
        options.option(
            help="Folder in which runs share the network of their first task, as the runs of "
            "'grace compare' do."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the state beside the record: see Learner.from_run.")
    ] = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    report: Annotated[bool, typer.Option(help="Write report.html beside the record.")] = True,
) -> None:
    """Learn a stream of classes task by task and record it.

    Started by torchrun, several processes share the work.
    """
    if with_parent:
        _end_with_input()
    settings = load_experiment(*split(arguments or ()))
    if Launch.from_environment().rank:
        _follow(settings, out, resume=resume)
        return
    if out is not None and out.exists() and not resume:
        raise GraceError(f"{out} exists already", "choose another --out or remove it")
    refuse_missing(settings)
    try:
        with RichProgress() as progress:
            record = run_experiment(
                settings,
                directory=out,
                progress=progress,
                resume=resume,
                keep=keep,
                first_tasks=first_tasks,
            )
    except KeyboardInterrupt as error:
        if getattr(error, "__notes__", ()):  # There is a record to go on with.
            more = "the same command continues" if resume else "add --resume to continue"
            error.add_note(more)
        raise
    page = record.directory / "report.html"
    print_summary(record, write_report([record], page) if report else None)


def print_summary(record: RunRecord, report: Path | None) -> None:
    """Print Last, Avg, forgetting, and the paths of the record and of its report, if it has one."""
    shown = {"Last": record.last, "Avg": record.average, "forgetting": record.forgetting}
    texts = (
        f"{name} –" if value is None else f"{name} {value:.2f} {unit}"
        for (name, value), unit in zip(shown.items(), ("%", "%", "points"), strict=True)
    )
    say("", "   ".join(texts), *record.info.notes)
    say(f"record  {record.directory}", *([f"report  {report}"] if report else []))


def _follow(settings: ExperimentSettings, out: Path | None, *, resume: bool) -> None:
    """Run as a further process; the first process writes the record and prints."""
    # This imports torch, which takes seconds; errors in the settings are reported before.
    from grace.engine.ranks import Ranks, is_said_elsewhere

    try:
        run_experiment(settings, directory=out, resume=resume)
    except Exception as error:
        if not is_said_elsewhere(error):
            raise
        # torchrun ends all processes when one ends; the one that reports the error must be first.
        time.sleep(Ranks.patience_after_error.total_seconds())
        raise typer.Exit(1) from None


def _end_with_input() -> None:
    """End this process at once when its standard input is closed.

    The parent keeps the other end of the pipe open and writes nothing. The system closes it when
    the parent ends, even by a kill. The interrupted work can be resumed, as after any kill.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        os._exit(130)

    threading.Thread(target=wait, daemon=True, name="end with input").start()
