"""The verbs that ask a learner or pass it on: predict, evaluate and export."""

import base64
import csv as csv_files
import io
import json as json_texts
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size

from grace.base.atomic import write_bytes
from grace.base.errors import GraceError, not_there
from grace.base.words import in_bytes, in_interval, printable
from grace.cli import options
from grace.cli.console import emit, say
from grace.cli.show import show
from grace.data.folder_tree import given_files, names_in

if TYPE_CHECKING:
    from grace.learner.evaluate import Evaluated
    from grace.learner.learner import Learner
    from grace.learner.prediction import Answerer, Prediction

# What is imported within the functions takes half a second, or with torch three: --help and what
# is refused at once do not wait for it.


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
        float,
        options.percent(
            min=0, help="Images of learnt classes that --unknown may mark by mistake. Default: 5."
        ),
    ] = 5,
    version: options.Version = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Name the classes of images with probabilities; exit code 1 if some are unreadable.

    From a file of ``grace export`` it answers in half a second: torch is not imported.
    """
    if json and csv:
        raise GraceError("--json and --csv are two forms", "choose one of them")
    listed = [names_in(sys.stdin.buffer) if str(name) == "-" else [name] for name in images]
    paths, notes = given_files([name for names in listed for name in names])
    say(*(f"warning: {note}" for note in notes), err=True)
    if paths and not any(path.exists() for path in paths) and Path("-") not in images:
        raise not_there(printable(str(paths[0])))
    answerer = _answerer(model, version)
    from grace.learner.prediction import cutoff, predict_files

    rate = false_alarms / 100
    limit = cutoff(answerer.familiarities, rate) if unknown else None
    top = min(top, len(answerer.class_names) - len(answerer.forgotten))
    form = _json if json else _csv if csv else _table
    head, row = form(answerer.class_names, top, unknown)
    emit(head)
    num_problems = 0
    for found in predict_files(answerer, paths, top):
        num_problems += found.problem is not None
        emit(row(_facts(found, limit)))
    if unknown:
        say(
            f"unknown: at most {100 * rate:g} % of images of learnt classes are marked so, "
            f"calibrated on {len(answerer.familiarities)} held-out images",
            err=json or csv,
        )
    if num_problems:
        say(f"{num_problems} of {len(paths)} images could not be read", err=True)
        raise typer.Exit(1)


def _answerer(model: Path, version: int | None) -> "Answerer":
    if model.is_file():
        if version is not None:
            raise GraceError("an exported file holds one version", "leave --version out")
        from grace.learner.exported import open_exported

        return open_exported(model)
    return _loaded(model, version).answerer()


def _refuse_unreadable(model: Path, version: int | None) -> None:
    """Refuse what is no learner, or damaged, before torch is imported."""
    from grace.learner.store import ModelStore

    store = ModelStore.open(model)
    store.steadily(lambda: (wanted := version or store.current()) and store.document(wanted))


def _loaded(model: Path, version: int | None) -> "Learner":
    _refuse_unreadable(model, version)
    from grace.learner.learner import Learner

    return Learner.load(model, version)


Facts = dict[str, Any]
_Row = Callable[[Facts], bytes]


def _facts(found: "Prediction", limit: float | None) -> Facts:
    """Return a prediction as JSON; with a limit of familiarity also if the image is unknown."""
    if found.problem is not None:
        return {"image": str(found.path), "error": found.problem}
    top = [
        {"class": own.class_name, "index": own.index, "probability": own.probability}
        for own in found.guesses
    ]
    facts = {"image": str(found.path), **top[0], "top": top}
    if limit is not None and found.familiarity is not None:
        facts |= {"unknown": found.familiarity < limit, "familiarity": found.familiarity}
    return facts


def _json(class_names: Sequence[str], top: int, has_unknown: bool) -> tuple[bytes, _Row]:
    """Return no heading and what writes an object in one line."""

    def row(facts: Facts) -> bytes:
        text = json_texts.dumps(facts, ensure_ascii=False)
        # A file name that is not UTF-8 is escaped.
        return f"{text if text.isprintable() else json_texts.dumps(facts)}\n".encode()

    return b"", row


def _csv(class_names: Sequence[str], top: int, has_unknown: bool) -> tuple[bytes, _Row]:
    """Return the heading of CSV and what writes a row; file names keep all their bytes."""
    guess = ["class", "probability", "index"]
    further = [f"{name}_{rank}" for rank in range(2, top + 1) for name in guess]
    columns = ["image", *guess, *["unknown", "familiarity"] * has_unknown, *further, "error"]

    def row(facts: Facts) -> bytes:
        for rank, own in enumerate(facts.get("top", ())[1:], 2):
            facts |= {f"{name}_{rank}": own[name] for name in guess}
        if has_unknown and "unknown" in facts:
            facts["unknown"] = json_texts.dumps(facts["unknown"])
        return line(facts)

    def line(facts: Facts) -> bytes:
        out = io.StringIO()
        csv_files.DictWriter(out, columns, "", "ignore", lineterminator="\n").writerow(facts)
        return out.getvalue().encode("utf-8", "surrogateescape")

    return line({column: column for column in columns}), row


def _table(class_names: Sequence[str], top: int, has_unknown: bool) -> tuple[bytes, _Row]:
    """Return the heading of a table and what writes a row; paths are last, so never cut."""
    width = max(cell_len(printable(name)) for name in [*class_names, "class"])

    def line(guesses: Sequence[tuple[str, str]], mark: str, last: str) -> bytes:
        guesses = [*guesses, *[("–", "–")] * (top - len(guesses))]
        cells = [f"{set_cell_size(printable(name), width)}  {share:>5}" for name, share in guesses]
        return ("  ".join([*cells, *[f"{mark:7}"] * has_unknown, printable(last)]) + "\n").encode()

    def row(facts: Facts) -> bytes:
        guesses = [
            (own["class"], f"{100 * own['probability']:.1f}") for own in facts.get("top", ())
        ]
        mark = "unknown" if facts.get("unknown") else ""
        return line(guesses, mark, facts["error"] if "error" in facts else facts["image"])

    return line([("class", "%")] * top, "unknown", "image"), row


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
        # From 1: a share, such as 0.9, would ask for nothing.
        options.percent(min=1, help="End with exit code 3 if the accuracy is below."),
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
    _refuse_unreadable(model, version)
    from grace.learner.evaluate import evaluate as evaluate_folder

    found = evaluate_folder(model, images, version)
    say(*(f"warning: {note}" for note in [*found.notes, *found.unreadable]), err=True)
    if html is not None:
        write_page(found, html)
    facts = found.facts
    show(
        facts if json else facts | {"confusions": facts["confusions"][:10]},
        as_json=json,
        title=f"version {found.version} of '{found.model}' on '{found.images}'",
        hide={"model", "version", "images", "notes"},
        after=[] if html is None else [f"mistakes with their pictures: {html}"],
    )
    if min_accuracy is not None and 100 * found.accuracy < min_accuracy - 1e-9:
        say(f"the accuracy is below {min_accuracy:g} %", err=True)
        raise typer.Exit(3)


def write_page(found: "Evaluated", path: Path, most: int = 48) -> None:
    """Write a page that needs no other file, of at most some 400 kB.

    Args:
        found: the results.
        path: file to write; an existing one is replaced.
        most: number of mistakes to show.
    """
    from grace.studies.report import render

    text = render(
        files("grace.cli").joinpath("templates", "evaluation.html.j2"),
        most=100_000,  # A thumbnail is a text too.
        title=f"{found.model.resolve().name}: version {found.version} on {found.images}",
        facts=found.facts,
        pictures=[(own, _thumbnail(own.path)) for own in found.mistakes[:most]],
        num_mistakes=len(found.mistakes),
        percent=lambda share: f"{100 * share:.1f} %",
        in_interval=in_interval,
    )
    write_bytes(path, f"{text}\n".encode())


def _thumbnail(path: Path, side: int = 128) -> str:
    """Return a JPEG in base 64; empty if the file has changed and cannot be read."""
    from PIL import Image

    from grace.data.decoders import read_pixels
    from grace.data.decoding import Reading

    try:
        image = Image.fromarray(read_pixels(path, Reading(3, side, "letterbox")))
    except GraceError:
        return ""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return base64.b64encode(out.getvalue()).decode()


def export(
    model: options.Learner,
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: MODEL.onnx.", show_default=False)
    ] = None,
    version: options.Version = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Export a learner to an ONNX file, and check that it predicts the same.

    ``grace predict MODEL.onnx IMAGES`` answers from the file without torch.
    """
    place = model.resolve() if model.name in ("", "..") else model
    path = out or place.with_name(f"{place.name}.onnx")
    _refuse_unreadable(model, version)
    from grace.learner.exported import refuse_place

    refuse_place(path, replace=force)
    learner = _loaded(model, version)
    exported = learner.export(path, replace=force)
    say(
        f"{path}: {in_bytes(path.stat().st_size)}, version {learner.version}",
        f"checked on {exported.num_images} {exported.checked_on}: the same classes, logits "
        f"within {exported.max_difference:.1g}",
    )
