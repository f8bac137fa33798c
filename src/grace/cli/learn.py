"""``grace learn``: teach a learner the images of a folder; the first call makes it."""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from grace.cli._errors import one_line_errors, one_line_warnings
from grace.text.refusals import GraceError


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
            help="Settings of a new learner to start from (default: folder).", show_default=False
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
            help="Ceiling on what the learner takes on disk, in megabytes; without --memory, "
            "images of old classes fill it.",
            show_default=False,
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of its images in pixels.", show_default=False)
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1: grey, 3: colour.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything random.", show_default=False)
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(
            help="Images of each class to hold out, by which updates are judged (default: 10).",
            show_default=False,
        ),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="Reject an update that costs the old classes more than so many points of percent "
            "of accuracy.",
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
        bool, typer.Option("--again", help="Learn images that have been learnt already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Teach a learner new classes, or fresh images of known ones; the first call makes it.

    Called again after an interruption, it goes on where it stopped.
    """
    with one_line_errors():
        from grace.cli._creation import Wish

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
        wish = Wish(experiment, options, texts or ())
        if images is None:
            _discard(model, wanted=discard)
            return
        from rich.console import Console

        from grace.cli._lesson import Teaching, teach
        from grace.cli._summary import as_dict, page
        from grace.cli.progress import RichProgress

        teaching = Teaching(
            images=images,
            max_drop=max_drop,
            skip_unreadable=skip_unreadable,
            skip_duplicates=skip_duplicates,
            discard=discard,
            again=again,
        )
        console = Console(stderr=True, highlight=False)
        with one_line_warnings(), RichProgress(console) as progress:
            lesson = teach(model, wish, teaching, progress)
        if as_json:
            typer.echo(json.dumps(as_dict(lesson), indent=2, ensure_ascii=False))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            typer.echo("\n".join(page(lesson, width)))
        if lesson.is_rejected:
            raise typer.Exit(3)


def _discard(model: Path, *, wanted: bool) -> None:
    """Drop an interrupted update without learning anything."""
    if not wanted:
        raise GraceError("nothing to learn", "give the folder of the new images")
    from grace.cli._homes import find
    from grace.home.store import ModelStore

    was_pending = ModelStore.open(model).pending()
    find(model, discard=True)
    what = "dropped the interrupted update" if was_pending else "there is no interrupted update"
    typer.echo(f"{what} of '{model}'")
