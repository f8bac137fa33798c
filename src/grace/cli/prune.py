"""``grace prune``: remove old versions of a learner."""

from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.base.words import in_bytes, named_versions
from grace.cli import options
from grace.cli.console import say
from grace.cli.errors import one_line_errors
from grace.learner.pruning import bytes_of, keep_newest, keep_within
from grace.learner.store import ModelStore


def prune(
    model: options.Learner,
    keep: Annotated[
        int | None,
        options.option(
            min=0, help="Number of newest versions to keep; the one in use stays in any case."
        ),
    ] = None,
    max_disk_mb: Annotated[
        float | None,
        options.option(
            min=0,
            metavar="MB",
            help="Remove the oldest versions until all together take at most so many megabytes "
            "(10⁶ bytes).",
        ),
    ] = None,
) -> None:
    """Remove old versions of a learner for good; the version in use stays as it is.

    Exit code 1 if what must stay takes more than --max-disk-mb.
    """
    with one_line_errors():
        if (keep is None) == (max_disk_mb is None):
            raise GraceError("what shall stay?", "give either --keep or --max-disk-mb")
        home = ModelStore.open(model)
        unfinished = home.finish()
        before = bytes_of(home.documents())
        if keep is not None:
            gone = keep_newest(home, keep)
        else:
            assert max_disk_mb is not None
            gone = keep_within(home, max_disk_mb)
        after = bytes_of(home.documents())
        if gone:
            say(f"removed {named_versions(gone)} of '{model}': {in_bytes(before - after)} freed")
        elif unfinished is not None and unfinished.kind == "prune":
            say(f"finished what was interrupted: {named_versions(unfinished.versions)} removed")
        else:
            say(f"'{model}' has no version to remove: nothing to do")
        say(f"{in_bytes(after)} are left")
        if max_disk_mb is not None and after > max_disk_mb * 1_000_000:
            say(
                f"warning: the version in use alone takes more than the {max_disk_mb:g} MB asked "
                "for",
                err=True,
            )
            raise typer.Exit(1)
