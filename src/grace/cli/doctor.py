"""``grace doctor``: list the problems of a folder of images without learning it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from grace.base.words import counted, in_count
from grace.cli import learn_options as options
from grace.cli.columns import aligned
from grace.cli.console import emit_json, say
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.info_page import under_way
from grace.learner.learn import Checked, examine_call
from grace.learner.request import resolved

if TYPE_CHECKING:
    from grace.data.findings import Examination

_REMEDIES = {path: f"learn with {option}" for path, option in options.OPTIONS.items()}


@options.with_shared_options
def doctor(
    images: Annotated[
        Path,
        typer.Argument(metavar="IMAGES", help="Folder of images, as for 'grace learn'."),
    ],
    texts: options.Texts = None,
    *,
    model: Annotated[
        Path | None,
        options.option(metavar="MODEL", help="The learner that will learn the images."),
    ] = None,
    **given: Unpack[options.Given],
) -> None:
    """Examine images before learning them: nothing is learnt, nothing is changed.

    Takes the options of 'grace learn', and exits with 2 if that would refuse the images.
    """
    with one_line_errors(_REMEDIES), one_line_warnings():
        requested, how = options.split(texts or (), given)
        call = resolved(model, images, requested, how, dry_run=True)
        if call.store is not None and not how.discard:
            say(*under_way(call.store), err=True)
        checked = examine_call(call)
        if given["as_json"]:
            emit_json(_as_dict(checked))
        else:
            say(*_page(images, checked))
        if not checked.found.is_ready:
            raise typer.Exit(2)


def _as_dict(checked: "Checked") -> dict[str, Any]:
    found = checked.found
    findings = [
        {
            "severity": finding.severity,
            "text": finding.text,
            "where": finding.where,
            "remedy": finding.error.advice(_REMEDIES),
        }
        for finding in found.findings
    ]
    return {
        "ready": found.is_ready,
        "verdict": found.worded(_REMEDIES),
        **asdict(found),
        "findings": findings,
        "passes": checked.passes,
        "chosen": list(checked.chosen),
    }


def _page(images: Path, checked: "Checked") -> list[str]:
    found = checked.found
    classes = counted(len(found.classes), "class", "classes")
    unreadable = sum(count.unreadable for count in found.classes.values())
    readable = counted(found.num_images - unreadable, "image")
    besides = f", {unreadable} unreadable" if unreadable else ""
    lines = [f"{images}: {readable} in {classes}{besides}", ""]
    lines += _classes(found)
    if found.smallest and found.largest:
        sizes = [f"{width}×{height}" for width, height in (found.smallest, found.largest)]
        lines += ["", f"sizes     {' to '.join(dict.fromkeys(sizes))} pixels"]
    lines += checked.chosen
    if checked.passes is not None:
        lines.append(f"budget    {in_count(checked.passes)} image passes at most")
    if found.findings:
        lines.append("")
    for finding in found.findings:
        remedy = finding.error.advice(_REMEDIES)
        lines.append(f"{finding.severity + ':':<9}{finding.text}")
        lines += [f"{'':<9}→ {remedy}"] if remedy else []
    return [*lines, "", found.worded(_REMEDIES)]


def _classes(found: "Examination") -> Sequence[str]:
    header = ("class", "train", "test", "unreadable", "duplicates", "")
    news = {None: "", True: "new", False: "known"}
    rows = [
        (
            name,
            str(count.train),
            str(count.test),
            str(count.unreadable or "–"),
            str(count.duplicates or "–"),
            news[count.is_new],
        )
        for name, count in found.classes.items()
    ]
    return aligned([header, *rows], "<>>>>")
