"""``grace doctor``: list the problems of a folder of images without learning it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.columns import aligned
from grace.cli.console import emit_json, say
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.learn_options import OPTIONS
from grace.configs.experiment import ExperimentSettings
from grace.configs.load import load_experiment
from grace.text.units import in_bytes, in_seconds

if TYPE_CHECKING:
    from grace.data.doctor import Examination
    from grace.learner.estimate import Estimate

_REMEDIES = {path: f"learn with {option}" for path, option in OPTIONS.items()}


def doctor(
    images: Annotated[
        Path,
        typer.Argument(metavar="IMAGES", help="Folder of images, as for 'grace learn'."),
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Settings that a new learner would get.", show_default=False
        ),
    ] = None,
    *,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL", help="The learner that will learn the images.", show_default=False
        ),
    ] = None,
    experiment: Annotated[
        str, typer.Option(help="Experiment whose settings a new learner would start from.")
    ] = "folder",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Examine images before learning them: nothing is learnt, nothing is changed.

    Exits with 2 if 'grace learn' would refuse the images.
    """
    with one_line_errors():
        learner: Path | ExperimentSettings | None = model
        if learner is None:
            with one_line_warnings():
                learner = load_experiment(experiment, texts or ())
        # torch takes seconds to import: --help and what is refused here do not wait for it.
        from grace.learner.examining import examine_for

        found, cost = examine_for(learner, images)
        if as_json:
            emit_json(_as_dict(found, cost))
        else:
            say(*_page(images, found, cost))
        if not found.is_ready:
            raise typer.Exit(2)


def _as_dict(found: "Examination", cost: "Estimate | None") -> dict[str, Any]:
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
        "estimate": asdict(cost) if cost else None,
    }


def _page(images: Path, found: "Examination", cost: "Estimate | None") -> list[str]:
    lines = [f"{images}: {found.num_images} images in {len(found.classes)} classes", ""]
    lines += _classes(found)
    if found.smallest and found.largest:
        sizes = [f"{width}×{height}" for width, height in (found.smallest, found.largest)]
        kinds = ", ".join(f"{count} {mode}" for mode, count in found.modes.items())
        lines += ["", f"sizes   {' to '.join(dict.fromkeys(sizes))} pixels   kinds   {kinds}"]
    if cost is not None:
        lines += [
            f"time    about {in_seconds(cost.seconds)} on this machine "
            f"({cost.images_per_second:.0f} images/s in training)",
            f"memory  about {in_bytes(cost.memory_bytes)}",
        ]
    if found.findings:
        lines.append("")
    for finding in found.findings:
        remedy = finding.error.advice(_REMEDIES)
        lines += [f"{finding.severity + ':':<9}{finding.text}", f"{'':<9}→ {remedy}"]
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
