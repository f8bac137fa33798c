"""The arguments and options of ``learn`` and ``doctor``, and the settings behind them."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from grace.learner.requested import RequestedSettings

OPTIONS = {
    "method": "--method",
    "backbone.name": "--backbone",
    "backbone.weights": "--weights",
    "backbone.train": "--train",
    "memory.size": "--memory",
    "memory.max_mb": "--max-mb",
    "memory.validation": "--validation",
    "budget.minutes": "--minutes",
    "data.image_size": "--image-size",
    "data.channels": "--channels",
    "data.skip_unreadable": "--skip-unreadable",
    "data.skip_duplicates": "--skip-duplicates",
    "seed": "--seed",
}
"""The option of ``grace learn`` for a setting, by dotted path."""

_argument = partial(typer.Argument, show_default=False)
_option = partial(typer.Option, show_default=False)

Images = Annotated[
    Path | None,
    _argument(
        metavar="IMAGES",
        help="Folder with a folder of images for each class, or with train/ and test/ of such "
        "folders. Only new images are needed.",
    ),
]
Texts = Annotated[
    list[str] | None,
    _argument(
        metavar="KEY=VALUE",
        help="Settings of a new learner, such as method.grow.epochs=20 ('grace show folder' "
        "lists them); engine.* also later.",
    ),
]
Model = Annotated[Path, _option(metavar="MODEL", help="Directory of the learner.")]
Experiment = Annotated[
    str | None,
    _option(
        help="Experiment whose settings a new learner starts from; without it they are chosen for "
        "the images and this machine."
    ),
]
Method = Annotated[str | None, _option(help="Method, such as grace or der.")]
Backbone = Annotated[str | None, _option(help="Backbone, such as resnet18.")]
Weights = Annotated[
    str | None,
    _option(
        metavar="FILE|timm",
        help="Pre-trained weights of the backbone: a .safetensors file, or timm for those of the "
        "tag in --backbone.",
    ),
]
Train = Annotated[
    str | None,
    _option(
        metavar="PART",
        help="What of the backbone learns: all, last-stages or frozen (the default with "
        "--weights).",
    ),
]
Memory = Annotated[int | None, _option(help="Images of old classes to keep.")]
MaxMb = Annotated[
    float | None,
    _option(
        help="Largest size of one version of the learner in megabytes; without --memory, images "
        "of old classes fill it. Earlier versions are kept beside it."
    ),
]
MaxDiskMb = Annotated[
    float | None,
    _option(
        help="Largest size of all versions together in megabytes: afterwards the oldest versions "
        "are removed. Default: all are kept."
    ),
]
Minutes = Annotated[
    float | None,
    _option(
        help="Minutes of training that an update should take at most (default: 3); fewer epochs "
        "are trained then."
    ),
]
ImageSize = Annotated[int | None, _option(help="Side of the images in pixels.")]
Channels = Annotated[int | None, _option(help="Channels of the images: 1 grey, 3 colour.")]
Seed = Annotated[int | None, _option(help="Seed of all random numbers.")]
Validation = Annotated[
    int | None,
    _option(
        help="Images of each class to hold out, a fifth of the class at most; they judge every "
        "update (default: 50)."
    ),
]
MaxDrop = Annotated[
    float | None,
    _option(
        metavar="POINTS",
        help="Reject an update if the accuracy on old classes drops by more than this many "
        "percentage points.",
    ),
]
MaxClassDrop = Annotated[
    float | None,
    _option(
        metavar="POINTS",
        help="Reject an update if a paired test shows that one old class lost accuracy, and it "
        "lost more than this many percentage points.",
    ),
]
MinNew = Annotated[
    float | None,
    _option(
        metavar="PERCENT",
        help="Reject an update if fewer percent of the images of new classes are right.",
    ),
]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave unreadable images out.")
]
SkipDuplicates = Annotated[
    bool, typer.Option("--skip-duplicates", help="Leave out images that are in two places.")
]
Discard = Annotated[bool, typer.Option("--discard", help="Drop an interrupted update first.")]
Again = Annotated[
    bool, typer.Option("--again", help="Learn images again that were learnt already.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


def requested(experiment: str | None, texts: Sequence[str], **given: object) -> RequestedSettings:
    """Turn options into overrides, and put them before the ``KEY=VALUE`` texts.

    Args:
        experiment: the experiment to start from.
        texts: ``KEY=VALUE`` texts.
        given: values by the name of their option; ``None``: the option was not given.
    """
    paths = {option: path for path, option in OPTIONS.items()}
    named = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    written = {
        f"{paths[option]}={json.dumps(value)}": f"{option} {value}"
        for option, value in named.items()
        if value is not None
    }
    return RequestedSettings(experiment, [*written, *texts], written)
