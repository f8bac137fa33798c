"""``grace evaluate``: the accuracy of a learner on labelled images."""

from pathlib import Path
from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.cli import options
from grace.cli.console import emit_json, say
from grace.cli.errors import one_line_errors
from grace.cli.evaluation_page import as_dict, page


def evaluate(
    model: options.Learner,
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES",
            help="Folder with a folder of images for each class, or with train/ and test/ of such "
            "folders, of which test/ is used.",
        ),
    ],
    min_accuracy: Annotated[
        float | None,
        options.percent(help="End with exit code 3 if the accuracy is below."),
    ] = None,
    version: options.Version = None,
    json: options.AsJson = False,
    html: Annotated[
        Path | None,
        options.option(
            metavar="FILE", help="Also write a page with the worst mistakes and their pictures."
        ),
    ] = None,
) -> None:
    """Test a learner on labelled images; exit code 3 if it is below a required accuracy."""
    with one_line_errors():
        if html is not None and not html.resolve().parent.is_dir():
            raise GraceError(f"there is no folder '{html.parent}' to write into", "create it")
        # torch takes seconds to import: --help and what is refused here do not wait for it.
        from grace.learner.folder_evaluation import evaluate as evaluate_folder

        found = evaluate_folder(model, images, version)
        say(*(f"warning: {note}" for note in [*found.notes, *found.problems]), err=True)
        if html is not None:
            from grace.cli.evaluation_html import write_page

            write_page(found, html)
        if json:
            emit_json(as_dict(found, min_accuracy))
        else:
            say(*page(found, min_accuracy))
            if html is not None:
                say("", f"mistakes with their pictures: {html}")
        if not found.reaches(min_accuracy):
            raise typer.Exit(3)
