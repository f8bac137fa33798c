"""``grace history``: the verdict, size and accuracy of every update."""

from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.cli import options
from grace.cli.console import emit, emit_json, say
from grace.cli.errors import one_line_errors
from grace.cli.info_page import under_way
from grace.cli.ledger_table import (
    as_class_csv,
    as_class_lines,
    as_csv,
    as_json,
    as_lines,
    change_lines,
    note_on,
)
from grace.learner.ledger import ledger, other_threshold
from grace.learner.store import ModelStore
from grace.learner.trail import trail


def history(
    model: options.Learner,
    threshold: Annotated[
        float | None,
        options.option(
            help="Also show the verdicts of this threshold on the recorded saturations."
        ),
    ] = None,
    decay: Annotated[
        float | None,
        options.option(
            help="Factor on that threshold after each compression. Default of both options: the "
            "learner's values."
        ),
    ] = None,
    classes: Annotated[
        bool,
        typer.Option(
            "--classes",
            help="Show the accuracy of every class instead, with its 95 % interval; with --csv "
            "before and after each update.",
        ),
    ] = False,
    json: options.AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
) -> None:
    """List all updates of a learner, and what was forgotten, pruned or rolled back."""
    with one_line_errors():
        if json and csv:
            raise GraceError("--json and --csv exclude each other", "give one of them")
        home = ModelStore.open(model)
        survey = home.survey()
        for error in survey.damaged.values():
            say(f"warning: {error}", err=True)
        for path in home.log.set_aside():
            say(f"warning: '{path}' is damaged: changes until then are not listed", err=True)
        say(*under_way(home), err=True)
        initial = other_threshold(survey.documents, threshold, decay)
        changes = home.log.changes()
        entries = ledger(survey.documents, survey.current, initial, changes)
        if json:
            emit_json(as_json(entries, changes, initial))
        elif csv:
            emit(as_class_csv(entries) if classes else as_csv(entries, initial))
        elif classes:
            say(*as_class_lines(entries))
        elif entries:
            for number, line in enumerate(as_lines(entries, initial)):
                say(line, bold=number < 2)
            for line in change_lines(trail(entries, changes)):
                say(line)
        else:
            say("nothing has been learnt yet")
        if initial is not None:
            say(*note_on(initial), err=json or csv)
