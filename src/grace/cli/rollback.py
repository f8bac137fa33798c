"""``grace rollback``: put another version of a learner in use."""

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

import grace
from grace.base.errors import DamagedError
from grace.cli import options
from grace.cli.class_lines import gate_text
from grace.cli.console import say
from grace.cli.errors import one_line_errors
from grace.learner.store import ModelStore


def rollback(
    model: options.Learner,
    version: Annotated[
        int,
        typer.Argument(
            metavar="VERSION", help="Number of the version; 'grace history' lists them."
        ),
    ],
) -> None:
    """Put a version of a learner in use: an earlier one, a later one, or a rejected one."""
    with one_line_errors():
        home = ModelStore.open(model)
        home.finish()
        wanted = home.document(version)
        names: Sequence[str] = ()
        number: int | None = None
        undo: int | None = None
        try:
            number = home.current()
            names = home.document(number).live_class_names if number is not None else ()
        except DamagedError as error:
            # It is what people roll back from, not to.
            say(f"warning: {error}", err=True)
        else:
            undo = number
        if number == version:
            say(f"'{model}' is at version {version} already: nothing to do")
            return
        grace.Learner.load(model, version).rollback(version)
        was = "" if number is None else f", it was at {number}"
        say(f"'{model}' is at version {version} now{was}")
        live = wanted.live_class_names
        for label, changed in {
            "classes gone": [name for name in names if name not in live],
            "classes back": [name for name in live if name not in names],
        }.items():
            if changed and names:
                say(f"{label}  {', '.join(changed)}")
        update = wanted.history[-1]
        if wanted.status == "rejected":
            for ruling in update.rulings:
                if not ruling.is_passed:
                    say(f"it was {gate_text(ruling, wanted.class_names, is_first=False)}")
        if home.pending():
            say(
                "warning: an interrupted update only goes on from the version it began with; drop "
                f"it by 'grace learn --model {shlex.quote(str(model))} --discard'",
                err=True,
            )
        if undo is not None:
            say(f"undo  grace rollback {shlex.quote(str(model))} {undo}")
