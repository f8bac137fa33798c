"""``grace forget``: remove the images of a class from a learner."""

import shlex
import sys
import unicodedata
from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.base.words import named_versions
from grace.cli import options
from grace.cli.console import ask, say
from grace.cli.errors import one_line_errors
from grace.learner.forgetting import versions_to_purge
from grace.learner.store import ModelStore


def forget(
    model: options.Learner,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Name of the class.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a class's images from every version, and hide it until it is learnt again.

    Its index stays, and the weights do not change: new images of a class of this name bring it
    back in its old place.
    """
    drop = f"drop it by 'grace learn --model {shlex.quote(str(model))} --discard'"
    with one_line_errors({"discard": drop}):
        home, name = ModelStore.open(model), unicodedata.normalize("NFC", name)
        unfinished = home.finish()
        versions = versions_to_purge(home, name)
        if not versions:
            if unfinished is not None and unfinished.class_names == (name,):
                say(f"finished what was interrupted: no image of '{name}' is left")
                return
            say(f"'{model}' has forgotten '{name}' already: nothing to do")
            return
        if not yes:
            _ask(f"'{model}'", name, named_versions(versions))
        with home.changing():
            change = home.purge(name)
        which = named_versions(change.versions)
        say(f"forgot '{name}': removed its images from {which} of '{model}'")
        if change.damaged:
            say(f"removed {named_versions(change.damaged)}, which cannot be read")
        say("the weights are not unlearnt: what they know of it is hidden, not gone")


def _ask(model: str, name: str, which: str) -> None:
    if not sys.stdin.isatty():
        raise GraceError(
            f"'{name}' would be gone for good", "add --yes to forget it without asking"
        )
    say(f"The images of '{name}' in {which} of {model} are removed for good.")
    say("No version predicts it any more; its index stays, for new images to revive it.")
    say("The weights are not unlearnt: what they know of it is hidden, not gone.")
    try:
        agreed = ask(f"Forget '{name}'?")
    except typer.Abort:
        say("")
        raise KeyboardInterrupt from None
    if not agreed:
        say("nothing was changed")
        raise typer.Exit
