"""``grace predict``: the classes of images."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grace.cli import options
from grace.cli.console import emit, say
from grace.cli.errors import one_line_errors
from grace.cli.prediction_rows import FORMS
from grace.data.given_files import given_files


class PredictionForm(StrEnum):
    """Formats of predictions."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"


def predict(
    model: options.Learner,
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE|FOLDER...", help="Image files, or folders of images."),
    ],
    form: Annotated[
        PredictionForm,
        typer.Option("--format", help="A table for people; CSV or JSON lines for programs."),
    ] = PredictionForm.TABLE,
    top: Annotated[int, typer.Option(help="Classes to name for each image.")] = 1,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Mark images that look like no learnt class.")
    ] = False,
    false_alarms: Annotated[
        float | None,
        typer.Option(
            help="Share of images of learnt classes that --unknown may mark by mistake. "
            "Default: 0.05.",
            show_default=False,
        ),
    ] = None,
    version: options.Version = None,
) -> None:
    """Name the classes of images, with probabilities; exit code 1 if some cannot be read."""
    with one_line_errors():
        if false_alarms is not None and not unknown:
            say("warning: --false-alarms has no effect without --unknown", err=True)
        found = given_files(images)
        for note in found.notes:
            say(f"warning: {note}", err=True)
        # torch takes seconds to import: --help and what is refused here do not wait for it.
        from grace.learner.learner import Learner
        from grace.learner.prediction import FilePredictor

        learner = Learner.load(model, version)
        rate = (0.05 if false_alarms is None else false_alarms) if unknown else None
        predictor = FilePredictor(learner, top=top, false_alarms=rate)
        rows = FORMS[form.value](learner.class_names, predictor.top, unknown)
        num_problems = 0
        emit(rows.head())
        for batch in predictor.predict(found.paths):
            num_problems += sum(prediction.problem is not None for prediction in batch)
            emit(b"".join(rows.row(prediction) for prediction in batch))
        if rate is not None:
            note = (
                f"unknown: at most {100 * rate:g} % of images of learnt classes are marked so, "
                f"calibrated on {predictor.num_held_out} held-out images"
            )
            say(note, err=form is not PredictionForm.TABLE)
        if num_problems:
            text = f"{num_problems} of {len(found.paths)} images could not be read"
            say(text, err=True)
            raise typer.Exit(1)
