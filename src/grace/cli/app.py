"""The command's verbs put together."""

from typing import Annotated

import typer

import grace
from grace.cli._errors import one_line_errors, show_tracebacks
from grace.cli.compare import compare
from grace.cli.doctor import doctor
from grace.cli.export import export
from grace.cli.forget import forget
from grace.cli.history import history
from grace.cli.info import info
from grace.cli.learn import learn
from grace.cli.list import list_names
from grace.cli.predict import predict
from grace.cli.report import report
from grace.cli.rollback import rollback
from grace.cli.run import run
from grace.cli.show import show
from grace.engine.launch import Launch
from grace.text.refusals import GraceError

app = typer.Typer(
    name="grace",
    help="Class-incremental learning by GRACE: grow, assess, compress.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("run")(run)
app.command("compare")(compare)
app.command("report")(report)
app.command("list")(list_names)
app.command("show")(show)
app.command("learn")(learn)
app.command("doctor")(doctor)
app.command("rollback")(rollback)
app.command("forget")(forget)
app.command("predict")(predict)
app.command("info")(info)
app.command("history")(history)
app.command("export")(export)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"grace {grace.__version__}")
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
    """Class-incremental learning by GRACE: grow, assess, compress."""
    show_tracebacks(traceback)
    with one_line_errors():
        _refuse_several_processes(context.invoked_subcommand)


def main() -> None:
    """Run the command line."""
    app()
