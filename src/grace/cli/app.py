"""The command ``grace``: its verbs, and the options that all verbs share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Annotated, Any, final

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

import grace
from grace.base.errors import GraceError
from grace.cli.console import one_line_errors, one_line_warnings, say, show_tracebacks
from grace.engine.launch import Launch

VERBS = {
    "run": "Learn a stream of classes task by task and record it.",
    "compare": "Run one experiment with many methods and seeds; write tables and a report.",
    "study": "Make a table or figure of the paper: its runs, its numbers beside ours, its claims.",
    "report": "Compare runs: one self-contained HTML page, or a table to paste.",
    "list": "List the experiments, methods, datasets and backbones known by name.",
    "show": "Show an experiment's resolved settings with their meanings.",
    "learn": "Teach a learner new classes, or fresh images of known ones; the first call makes it.",
    "doctor": "Examine images before learning them: nothing is learnt, nothing is changed.",
    "rollback": "Put a version of a learner in use: an earlier, a later, or a rejected one.",
    "forget": "Remove a class's images from every version, and hide it until it is learnt again.",
    "set": "Change settings of a learner: its ceiling, memory, threshold, gate and recipes.",
    "prune": "Remove old versions of a learner for good; the version in use stays as it is.",
    "predict": "Name the classes of images with probabilities; exit code 1 if some are unreadable.",
    "evaluate": "Test a learner on labelled images; exit code 3 below a required accuracy.",
    "info": "Show a learner's classes, method, backbones and size, or its model card.",
    "history": "List all updates of a learner, and what was forgotten, pruned or rolled back.",
    "export": "Export a learner to an ONNX file, and check that it predicts the same.",
}
"""What each verb does, as its docstring says it, in the order of the help."""
_OTHERS = {
    "ask": "predict evaluate export",
    "study": "compare report",
    "list": "show",
    "learn": "doctor",
    "versions": "rollback forget set prune info history",
}
MODULES = {verb: verb for verb in VERBS} | {
    verb: module for module, verbs in _OTHERS.items() for verb in verbs.split()
}
"""The module of this room that has each verb."""
FUNCTIONS = {
    "list": "list_names", "show": "show_settings", "set": "set_settings", "doctor": "learn",
}  # fmt: skip
"""The functions that have another name than their verb."""
_UsageError: Any = typer.BadParameter.mro()[1]
"""The base of all errors of usage, for which typer has no public name."""


@final
class Verbs(TyperGroup):
    """Imports a verb's module only to run the verb or to show its own help."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(**attributes)
        for name, text in VERBS.items():
            # It has what the group's help and suggestions need.
            self.add_command(TyperCommand(name, help=text))

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        # Without arguments, typer shows the help; it raises an error of usage for that too.
        with _one_line_usage() if args else nullcontext():
            return super().make_context(info_name, args, parent, **extra)

    @override
    def invoke(self, ctx: Any) -> Any:
        with one_line_errors(), one_line_warnings(), _one_line_usage():
            return super().invoke(ctx)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, self._imported(name) if name and found else found, rest

    def _imported(self, name: str) -> Any:  # noqa: ANN401 - typer has no public type of commands
        module = import_module(f"grace.cli.{MODULES[name]}")
        single = typer.Typer(add_completion=False)
        single.command(name)(getattr(module, FUNCTIONS.get(name, name)))
        return typer.main.get_command(single)


@contextmanager
def _one_line_usage() -> Iterator[None]:
    """Report errors of usage in one line, as all errors; typer would print a box of several."""
    try:
        yield
    except _UsageError as error:
        context = error.ctx
        hint = f" (see '{context.command_path} -h')" if context else ""
        say(f"error: {error.format_message().replace('Value error, ', '')}{hint}", err=True)
        raise typer.Exit(2) from None


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
