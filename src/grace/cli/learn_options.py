"""The arguments and options of ``grace learn``, and the settings behind them."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

OPTIONS = {
    "method": "--method",
    "backbone.name": "--backbone",
    "backbone.weights": "--weights",
    "backbone.train": "--train",
    "memory.size": "--memory",
    "memory.max_mb": "--max-mb",
    "memory.validation": "--validation",
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
    _option(help="Experiment whose settings a new learner starts from (default: folder)."),
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
