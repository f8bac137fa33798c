"""``grace learn``: teach a learner the images of a folder; the first call makes it."""

import shutil
import sys
from pathlib import Path
from typing import Unpack

import typer

from grace.base.errors import GraceError
from grace.cli import learn_options as options
from grace.cli.console import emit_json, say, terminal
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.learn_page import as_dict, page
from grace.cli.progress import RichProgress
from grace.learner.learn import learn as learn_folder
from grace.learner.request import drop_update

_REMEDIES = {path: f"use {option}" for path, option in options.OPTIONS.items()} | {
    "discard": "add --discard to begin anew",
    "memory.size": "use --memory {value}",
    "memory.max_mb": "allow more by --max-mb {value}",
    "memory.validation": "use --validation {value}",
    "gate.max_drop": "use --max-drop {value}",
    "gate.max_class_drop": "use --max-class-drop {value}",
}


@options.with_shared_options
def learn(
    images: options.Images = None,
    texts: options.Texts = None,
    *,
    model: options.Model,
    **given: Unpack[options.Given],
) -> None:
    """Teach a learner new classes, or fresh images of known ones; the first call makes it.

    Called again after an interruption, it continues where it stopped.
    """
    with one_line_errors(_REMEDIES), one_line_warnings(_REMEDIES):
        if images is None:
            _discard(model, wanted=given["discard"])
            return
        requested, how = options.split(texts or (), given)
        with RichProgress(terminal(err=True)) as progress:
            result = learn_folder(model, images, requested, how, progress)
        if given["as_json"]:
            emit_json(as_dict(result))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            say(*page(result, width))
        if result.is_rejected:
            raise typer.Exit(3)


def _discard(model: Path, *, wanted: bool) -> None:
    """Drop an interrupted update without learning anything."""
    if not wanted:
        raise GraceError("nothing to learn", "give the folder of the new images")
    was_there = drop_update(model)
    what = "dropped the interrupted update" if was_there else "there is no interrupted update"
    say(f"{what} of '{model}'")
