"""``grace evaluate``: the accuracy of a learner on labelled images."""

import base64
import io
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.base.atomic import write_bytes
from grace.base.errors import GraceError
from grace.base.words import in_interval, printable
from grace.cli import options
from grace.cli.console import say
from grace.cli.show import show

if TYPE_CHECKING:
    from grace.learner.evaluate import ClassResult, Evaluated


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
    """Test a learner on labelled images; exit code 3 below a required accuracy."""
    if html is not None and not html.resolve().parent.is_dir():
        raise GraceError(f"there is no folder '{html.parent}' to write into", "create it")
    # It takes half a second to import, and torch seconds.
    from grace.learner.evaluate import evaluate as evaluate_folder

    found = evaluate_folder(model, images, version)
    say(*(f"warning: {note}" for note in [*found.notes, *found.problems]), err=True)
    if html is not None:
        write_page(found, html)
    facts = found.facts(min_accuracy)
    if not json:
        facts |= {"confusions": facts["confusions"][:10]}
    show(
        facts,
        as_json=json,
        title=f"version {found.version} of '{found.model}' on '{found.images}'",
        hide={"model", "version", "images", "notes", *(["reached"] * (min_accuracy is None))},
        after=[] if html is None else [f"mistakes with their pictures: {html}"],
    )
    if not found.reaches(min_accuracy):
        raise typer.Exit(3)


def write_page(found: "Evaluated", path: Path, most: int = 48) -> None:
    """Write a page that needs no other file, of at most some 400 kB.

    Args:
        found: the results.
        path: file to write; an existing one is replaced.
        most: number of mistakes to show.
    """
    from jinja2 import Environment, StrictUndefined

    template = files("grace.cli").joinpath("templates", "evaluation.html.j2")
    page = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=lambda own: printable(str(own))
    ).from_string(template.read_text("utf-8"))
    text = page.render(
        title=f"{found.model.resolve().name}: version {found.version} on {found.images}",
        found=found,
        mistakes=[(own, _thumbnail(own.path)) for own in found.mistakes[:most]],
        percent=lambda share: f"{100 * share:.1f} %",
        accuracy=_accuracy,
    )
    write_bytes(path, f"{text}\n".encode())


def _accuracy(own: "ClassResult") -> str:
    return f"{100 * own.accuracy:.1f} % ({in_interval(own.interval)})"


def _thumbnail(path: Path, side: int = 128) -> str:
    """Return a JPEG in base 64; empty if the file has changed and cannot be read."""
    from grace.data.decoding import decode, naming

    try:
        with naming(path):
            image, _ = decode(path, 3)
    except GraceError:
        return ""
    image.thumbnail((side, side))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return base64.b64encode(out.getvalue()).decode()
