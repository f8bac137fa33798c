"""``grace learn``: teach a learner the images of a folder; the first call makes it."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.learn_page import as_dict, page
from grace.cli.progress import RichProgress
from grace.learner import teaching
from grace.learner.learn_call import LearnOptions
from grace.learner.requested import RequestedSettings
from grace.learner.unfinished import drop_update
from grace.text.refusals import GraceError

SETTINGS = {
    "--method": "method",
    "--backbone": "backbone.name",
    "--memory": "memory.size",
    "--max-mb": "memory.max_mb",
    "--image-size": "data.image_size",
    "--channels": "data.channels",
    "--seed": "seed",
    "--validation": "memory.validation",
}
"""The setting behind each option."""

REMEDIES = {
    "data.skip_unreadable": "use --skip-unreadable",
    "data.skip_duplicates": "use --skip-duplicates",
    "data.image_size": "use --image-size",
    "discard": "add --discard to begin anew",
    "memory.max_mb": "raise --max-mb",
}
"""What to do on the command line instead of setting a dotted path."""


def learn(
    images: Annotated[
        Path | None,
        typer.Argument(
            metavar="IMAGES",
            help="Folder with a folder of images for each class, or with train/ and test/ of such "
            "folders. Only new images are needed.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of a new learner, such as method.grow.epochs=20 ('grace show folder' "
            "lists them); engine.* also later.",
            show_default=False,
        ),
    ] = None,
    *,
    model: Annotated[
        Path, typer.Option(metavar="MODEL", help="Directory of the learner.", show_default=False)
    ],
    experiment: Annotated[
        str | None,
        typer.Option(
            help="Experiment whose settings a new learner starts from (default: folder).",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Method, such as grace or der.", show_default=False)
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Backbone, such as resnet18.", show_default=False)
    ] = None,
    memory: Annotated[
        int | None, typer.Option(help="Images of old classes to keep.", show_default=False)
    ] = None,
    max_mb: Annotated[
        float | None,
        typer.Option(
            help="Largest size of the learner on disk in megabytes; without --memory, images of "
            "old classes fill it.",
            show_default=False,
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels.", show_default=False)
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(help="Channels of the images: 1 grey, 3 colour.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of all random numbers.", show_default=False)
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(
            help="Images of each class to hold out; they judge every update (default: 10).",
            show_default=False,
        ),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="Reject an update if the accuracy on old classes drops by more than this many "
            "percentage points.",
            show_default=False,
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave unreadable images out.")
    ] = False,
    skip_duplicates: Annotated[
        bool,
        typer.Option("--skip-duplicates", help="Leave out images that are in two places."),
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Drop an interrupted update first.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Learn images again that were learnt already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Teach a learner new classes, or fresh images of known ones; the first call makes it.

    Called again after an interruption, it continues where it stopped.
    """
    options = {
        "--method": method,
        "--backbone": backbone,
        "--memory": memory,
        "--max-mb": max_mb,
        "--image-size": image_size,
        "--channels": channels,
        "--seed": seed,
        "--validation": validation,
    }
    with one_line_errors(REMEDIES), one_line_warnings():
        if images is None:
            _discard(model, wanted=discard)
            return
        how = LearnOptions(
            max_drop=max_drop,
            skip_unreadable=skip_unreadable,
            skip_duplicates=skip_duplicates,
            discard=discard,
            again=again,
        )
        requested = _requested(experiment, options, texts or ())
        with RichProgress(Console(stderr=True, highlight=False)) as progress:
            result = teaching.learn(model, images, requested, how, progress)
        if as_json:
            typer.echo(json.dumps(as_dict(result), indent=2, ensure_ascii=False))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            typer.echo("\n".join(page(result, width)))
        if result.is_rejected:
            raise typer.Exit(3)


def _requested(
    experiment: str | None, options: Mapping[str, object], texts: Sequence[str]
) -> RequestedSettings:
    """Turn the given options into overrides, and put them before the ``KEY=VALUE`` texts."""
    written = {
        f"{SETTINGS[option]}={json.dumps(value)}": f"{option} {value}"
        for option, value in options.items()
        if value is not None
    }
    return RequestedSettings(experiment, [*written, *texts], written)


def _discard(model: Path, *, wanted: bool) -> None:
    """Drop an interrupted update without learning anything."""
    if not wanted:
        raise GraceError("nothing to learn", "give the folder of the new images")
    was_there = drop_update(model)
    what = "dropped the interrupted update" if was_there else "there is no interrupted update"
    typer.echo(f"{what} of '{model}'")
