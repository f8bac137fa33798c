"""``grace export``: write a learner to one file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.base.words import in_bytes
from grace.cli import options
from grace.cli.console import say


def export(
    model: options.Learner,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: MODEL.onnx.", show_default=False),
    ] = None,
    version: options.Version = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Export a learner to an ONNX file, and check that it predicts the same.

    ``grace predict MODEL.onnx IMAGES`` answers from the file without torch.
    """
    place = model.resolve() if model.name in ("", "..") else model
    path = out or place.with_name(f"{place.name}.onnx")
    if path.exists() and not force:
        raise GraceError(f"'{path}' exists already", "choose another --out, or use --force")
    # torch takes seconds to import: --help and what is refused here do not wait for it.
    from grace.learner.learner import Learner

    learner = Learner.load(model, version)
    exported = learner.export(path, replace=force)
    say(
        f"{path}: {in_bytes(path.stat().st_size)}, version {learner.version}",
        f"checked on {exported.num_images} {exported.checked_on}: the same classes, logits "
        f"within {exported.max_difference:.1g}",
        f"class names: {exported.labels}; outputs: logits, probabilities, familiarity",
    )
