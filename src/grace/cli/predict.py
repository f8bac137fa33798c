"""``grace predict``: the classes of images."""

import csv as csv_files
import io
import json as json_texts
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

import typer
from rich.cells import cell_len, set_cell_size

from grace.base.errors import GraceError
from grace.base.words import printable
from grace.cli import options
from grace.cli.console import emit, say
from grace.data.folder_tree import given_files, names_in

if TYPE_CHECKING:
    from grace.learner.prediction import Answerer, FilePredictor, Prediction

Form = Literal["table", "csv", "json"]


def predict(
    model: Annotated[
        Path,
        options.argument(metavar="MODEL", help="Directory of the learner, or its exported file."),
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE|FOLDER|-...",
            help="Image files, or folders of images; -: a list on standard input, one a line.",
        ),
    ],
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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Name the classes of images with probabilities; exit code 1 if some are unreadable.

    From a file of ``grace export`` it answers in half a second: torch is not imported.
    """
    if json and csv:
        raise GraceError("--json and --csv are two forms", "choose one of them")
    rate = _rate(unknown, false_alarms)
    files = _found_files(images)
    answerer = _answerer(model, version)
    from grace.learner.prediction import FilePredictor

    predictor = FilePredictor(answerer, top=top, false_alarms=rate)
    form: Form = "json" if json else "csv" if csv else "table"
    rows = Rows(form, answerer.class_names, predictor.top, unknown)
    emit(rows.head())
    num_problems = 0
    for batch in predictor.predict(files):
        num_problems += sum(prediction.problem is not None for prediction in batch)
        emit(b"".join(rows.row(prediction) for prediction in batch))
    if rate is not None:
        say(_about_unknown(predictor, rate), err=form != "table")
    if num_problems:
        say(f"{num_problems} of {len(files)} images could not be read", err=True)
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
    listed = [names_in(sys.stdin.buffer) if str(name) == "-" else [name] for name in images]
    paths, notes = given_files([name for names in listed for name in names])
    say(*(f"warning: {note}" for note in notes), err=True)
    return paths


def _answerer(model: Path, version: int | None) -> "Answerer":
    """Open a learner or an exported file; what is imported takes half a second, or with torch 3."""
    if model.is_file():
        if version is not None:
            raise GraceError("an exported file holds one version", "leave --version out")
        from grace.learner.exported import open_exported

        return open_exported(model)
    from grace.learner.store import ModelStore

    ModelStore.open(model)  # What is no learner is refused without torch.
    from grace.learner.learner import Learner

    return Learner.load(model, version).answerer()


def _about_unknown(predictor: "FilePredictor", rate: float) -> str:
    """Say how many images are marked as unknown by mistake."""
    return (
        f"unknown: at most {100 * rate:g} % of images of learnt classes are marked so, calibrated "
        f"on {predictor.num_held_out} held-out images (score: {predictor.answerer.score_name})"
    )


@final
@dataclass(frozen=True)
class Rows:
    """Writes predictions in one form.

    A table has its paths last, so that they are never cut. A file name that is not UTF-8 keeps its
    bytes in CSV; JSON escapes them as half surrogates.
    """

    form: Form
    class_names: Sequence[str]
    top: int
    has_unknown: bool

    def head(self) -> bytes:
        """Return the heading, which may be empty."""
        if self.form == "json":
            return b""
        if self.form == "table":
            return self._aligned([("class", "%")] * self.top, "unknown", "image")
        names = ["class", "probability", "index"]
        further = [f"{name}_{rank}" for rank in range(2, self.top + 1) for name in names]
        return _csv(["image", *names, *["unknown", "familiarity"] * self.has_unknown, *further])

    def row(self, told: "Prediction") -> bytes:
        """Return the row of one image, with its line break."""
        if self.form == "json":
            return self._json(told)
        if self.form == "csv":
            return self._csv(told)
        cells = [(own.class_name, f"{100 * own.probability:.1f}") for own in told.guesses]
        cells += [("–", "–")] * (self.top - len(cells))
        mark = "unknown" if told.is_unknown else ""
        return self._aligned(cells, mark, told.problem or str(told.path))

    def _aligned(self, guesses: Sequence[tuple[str, str]], mark: str, last: str) -> bytes:
        width = max(cell_len(printable(name)) for name in [*self.class_names, "class"])
        cells = [f"{set_cell_size(printable(name), width)}  {share:>5}" for name, share in guesses]
        cells += [f"{mark:7}"] * self.has_unknown
        return ("  ".join([*cells, printable(last)]) + "\n").encode()

    def _csv(self, told: "Prediction") -> bytes:
        guesses = [[own.class_name, _digits(own.probability), own.index] for own in told.guesses]
        first, *others = guesses + [["", "", ""]] * (self.top - len(guesses))
        marks = {True: "true", False: "false", None: ""}
        score = "" if told.familiarity is None else _digits(told.familiarity)
        unknown = [marks[told.is_unknown], score] * self.has_unknown
        further = [cell for guess in others for cell in guess]
        return _csv([str(told.path), *first, *unknown, *further], told.problem or "")

    def _json(self, told: "Prediction") -> bytes:
        facts: dict[str, Any] = {"image": str(told.path)}
        if told.problem is not None:
            facts["error"] = told.problem
        else:
            top = [
                {
                    "class": own.class_name,
                    "index": own.index,
                    "probability": float(_digits(own.probability)),
                }
                for own in told.guesses
            ]
            facts |= {**top[0], "top": top}
            if self.has_unknown:
                facts |= {"unknown": told.is_unknown, "familiarity": told.familiarity}
        text = json_texts.dumps(facts, ensure_ascii=False)
        return f"{text if text.isprintable() else json_texts.dumps(facts)}\n".encode()


def _csv(cells: Sequence[Any], error: str = "error") -> bytes:
    out = io.StringIO()
    csv_files.writer(out, lineterminator="\n").writerow([*cells, error])
    return out.getvalue().encode("utf-8", "surrogateescape")


def _digits(probability: float) -> str:
    """Write a float32 with enough digits to read it back exactly."""
    return f"{probability:.9g}"
