"""``grace predict``: the classes of images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.base.errors import GraceError
from grace.cli import options
from grace.cli.console import emit, say
from grace.cli.errors import one_line_errors
from grace.cli.prediction_rows import FORMS
from grace.data.given_files import given_files, names_in

if TYPE_CHECKING:
    from grace.learner.prediction import FilePredictor

_Form = Annotated[
    str,
    options.choice(
        "--format",
        choices=tuple(FORMS),
        help="A table for people; CSV or JSON lines for programs.",
    ),
]


def predict(
    model: options.Learner,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE|FOLDER|-...",
            help="Image files, or folders of images; -: a list on standard input, one a line.",
        ),
    ],
    form: _Form = "table",
    top: Annotated[int, typer.Option(min=1, help="Classes to name for each image.")] = 1,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Mark images that look like no learnt class.")
    ] = False,
    false_alarms: Annotated[
        float | None,
        options.percent(
            help="Images of learnt classes that --unknown may mark by mistake, in percent. "
            "Default: 5."
        ),
    ] = None,
    version: options.Version = None,
) -> None:
    """Name the classes of images, with probabilities; exit code 1 if some cannot be read."""
    with one_line_errors():
        rate = _rate(unknown, false_alarms)
        files = _found_files(images)
        # These take half a second to import: --help and what is refused here do not wait for them.
        from grace.learner.learner import Learner
        from grace.learner.prediction import FilePredictor, answerer_of

        answerer = answerer_of(Learner.load(model, version))
        predictor = FilePredictor(answerer, top=top, false_alarms=rate)
        rows = FORMS[form](answerer.class_names, predictor.top, unknown)
        emit(rows.head())
        num_problems = 0
        for batch in predictor.predict(files):
            num_problems += sum(prediction.problem is not None for prediction in batch)
            emit(b"".join(rows.row(prediction) for prediction in batch))
        if rate is not None:
            say(_about_unknown(predictor, rate), err=form != "table")
        if num_problems:
            say(f"{num_problems} of {len(files)} images could not be read", err=True)
        if num_problems:
            raise typer.Exit(1)


def _rate(unknown: bool, false_alarms: float | None) -> float | None:
    """Return the share of false alarms; ``None``: unknown images are not marked."""
    if not unknown:
        if false_alarms is not None:
            raise GraceError("--false-alarms has no effect without --unknown", "add --unknown")
        return None
    return 0.05 if false_alarms is None else false_alarms / 100


def _found_files(images: Sequence[Path]) -> Sequence[Path]:
    """Return the image files that are named or lie in named folders; ``-``: on standard input."""
    names = [
        own
        for name in images
        for own in (names_in(sys.stdin.buffer) if str(name) == "-" else [name])
    ]
    found = given_files(names)
    say(*(f"warning: {note}" for note in found.notes), err=True)
    return found.paths


def _about_unknown(predictor: "FilePredictor", rate: float) -> str:
    """Say how many images are marked as unknown by mistake, and how many of those that are."""
    return (
        f"unknown: at most {100 * rate:g} % of images of learnt classes are marked so, "
        f"calibrated on {predictor.num_held_out} held-out images; {_found(predictor)}"
    )


def _found(predictor: "FilePredictor") -> str:
    """Say how many images of unknown classes are found, and by which score."""
    score = predictor.answerer.score_name.replace("_", " ")
    if predictor.detection is None:
        return f"how many images of unknown classes are found was not measured (score: {score})"
    share = f"{100 * predictor.detection:.0f} %"
    return f"an estimated {share} of images of unknown classes are found (score: {score})"
