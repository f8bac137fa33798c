"""``grace export``: write a learner to one file for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from grace.base.errors import GraceError
from grace.base.words import in_bytes
from grace.cli import options
from grace.cli.console import say
from grace.cli.errors import one_line_errors

if TYPE_CHECKING:
    from grace.learner.reduced_precision import Agreement, Precision


def export(
    model: options.Learner,
    to: Annotated[str, options.choice(choices=("onnx",), help="Format of the file.")] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: MODEL.onnx.", show_default=False),
    ] = None,
    precision: Annotated[
        str,
        options.choice(
            choices=("float32", "fp16", "int8"),
            help="float32: exact. fp16: half the size. int8: a quarter, calibrated on "
            "held-out images; what it costs is printed.",
        ),
    ] = "float32",
    version: options.Version = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Export a learner to a file that needs no torch, and check that it predicts the same."""
    with one_line_errors():
        path = out or _beside(model, to)
        if path.exists() and not force:
            raise GraceError(f"'{path}' exists already", "choose another --out, or use --force")
        # torch takes seconds to import: --help and what is refused here do not wait for it.
        import torch

        from grace.learner.export import latency, load_onnx
        from grace.learner.learner import Learner

        learner = Learner.load(model, version)
        exported = learner.export(path, replace=force, precision=cast("Precision", precision))
        image = torch.zeros(1, *learner.shape, dtype=torch.uint8)
        run, device = load_onnx(path), learner.trainer.device.torch_device.type
        milliseconds = [latency(lambda: learner.decision_function(image))]
        milliseconds += [latency(lambda: run(image))]
        check = exported.check
        say(f"{path}: {in_bytes(path.stat().st_size)}, version {learner.version}")
        which = "" if exported.agreement is None else "as float32 "
        say(
            f"{which}checked on {check.num_images} {exported.checked_on}: the same classes, logits "
            f"within {check.max_difference:.1g}"
        )
        if exported.agreement is not None:
            say(_cost(precision, exported.agreement))
            if exported.agreement.is_worse:
                say(f"warning: {precision} costs accuracy: {_MORE_EXACT[precision]}", err=True)
        say(f"class names: {exported.labels}; outputs: logits, probabilities, familiarity")
        say(
            f"one image takes {milliseconds[0]:.2g} ms by the learner ({device}), "
            f"{milliseconds[1]:.2g} ms by onnxruntime (cpu)"
        )


_MORE_EXACT = {"int8": "use --precision fp16, or float32", "fp16": "use float32"}


def _cost(precision: str, agreement: "Agreement") -> str:
    """Say what a lower precision changes, on the images that the file was checked on."""
    text = f"{precision}: {100 * agreement.same_class:.1f} % of these images keep their class"
    if agreement.accuracy is None:
        return text
    exact, reduced = (100 * share for share in agreement.accuracy)
    return f"{text}; {reduced:.1f} % are right (float32: {exact:.1f} %)"


def _beside(model: Path, to: str) -> Path:
    if model.name in ("", ".."):
        model = model.resolve()
    return model.with_name(f"{model.name}.{to}")
