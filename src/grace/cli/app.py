"""The command ``grace``: its verbs, and the options that all verbs share."""

import os
from typing import Annotated, final

import typer

import grace
from grace.base.errors import GraceError
from grace.cli.console import say
from grace.cli.errors import one_line_errors, show_tracebacks
from grace.cli.lazy import LazyGroup, Verb
from grace.engine.launch import Launch

VERBS = {
    "run": Verb(
        "grace.cli.run:run",
        "Learn a stream of classes task by task and record it.",
    ),
    "compare": Verb(
        "grace.cli.compare:compare",
        "Run one experiment with many methods and seeds; write tables and a report.",
    ),
    "study": Verb(
        "grace.cli.study:study",
        "Make a table or figure of the paper: its runs, its numbers beside ours, its claims.",
    ),
    "report": Verb(
        "grace.cli.report:report",
        "Compare runs: one self-contained HTML page, or a table to paste.",
    ),
    "list": Verb(
        "grace.cli.list:list_names",
        "List the experiments, methods, datasets and backbones known by name.",
    ),
    "show": Verb(
        "grace.cli.list:show_settings",
        "Show an experiment's resolved settings with their meanings.",
    ),
    "learn": Verb(
        "grace.cli.learn:learn",
        "Teach a learner new classes, or fresh images of known ones; the first call makes it.",
    ),
    "doctor": Verb(
        "grace.cli.learn:learn",
        "Examine images before learning them: nothing is learnt, nothing is changed.",
    ),
    "rollback": Verb(
        "grace.cli.versions:rollback",
        "Put a version of a learner in use: an earlier one, a later one, or a rejected one.",
    ),
    "forget": Verb(
        "grace.cli.versions:forget",
        "Remove a class's images from every version, and hide it until it is learnt again.",
    ),
    "set": Verb(
        "grace.cli.versions:set_settings",
        "Change settings of a learner: its ceiling, memory, threshold, gate and recipes.",
    ),
    "prune": Verb(
        "grace.cli.versions:prune",
        "Remove old versions of a learner for good; the version in use stays as it is.",
    ),
    "predict": Verb(
        "grace.cli.predict:predict",
        "Name the classes of images, with probabilities; exit code 1 if some cannot be read.",
    ),
    "evaluate": Verb(
        "grace.cli.evaluate:evaluate",
        "Test a learner on labelled images; exit code 3 if it is below a required accuracy.",
    ),
    "info": Verb(
        "grace.cli.versions:info",
        "Show a learner's classes, method, backbones and size, or its model card.",
    ),
    "history": Verb(
        "grace.cli.versions:history",
        "List all updates of a learner, and what was forgotten, pruned or rolled back.",
    ),
    "export": Verb(
        "grace.cli.export:export",
        "Export a learner to an ONNX file, and check that it predicts the same.",
    ),
}


@final
class Verbs(LazyGroup):
    """The verbs of the command."""

    verbs = VERBS


app = typer.Typer(
    name="grace",
    cls=Verbs,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"grace {grace.__version__}")
        raise typer.Exit


def _refuse_several_processes(verb: str | None) -> None:
    if verb not in ("run", None) and Launch.from_environment().num_processes > 1:
        raise GraceError(
            f"grace {verb} works in one process",
            "start it without torchrun, which is for grace run",
        )


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error came from.")
    ] = False,
) -> None:
    """Teach image classifiers new classes as they arrive, without all old images.

    GRACE grows a network, assesses whether that was needed, and compresses it.
    """
    show_tracebacks(traceback)
    with one_line_errors():
        _refuse_several_processes(context.invoked_subcommand)


def _let_threads_sleep() -> None:
    """Let OpenMP's threads wait awake for 0.1 to 1 ms only, unless the user says otherwise.

    By default they spin 30 times longer: where other work shares the cores, they keep them from
    the very threads that they wait for. OpenMP reads this once, when
    torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main() -> None:
    """Run the command line."""
    _let_threads_sleep()
    app()
