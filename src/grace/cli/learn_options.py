"""The arguments and options of ``learn`` and ``doctor``, and the settings behind them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_type_hints

import typer

from grace.cli.options import AsJson, argument, option, percent
from grace.learner.request import LearnOptions, RequestedSettings

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

Images = Annotated[
    Path | None,
    argument(
        metavar="IMAGES",
        help="Folder with a folder of images for each class, or with train/ and test/ of such "
        "folders. Only new images are needed.",
    ),
]
Texts = Annotated[
    list[str] | None,
    argument(
        metavar="KEY=VALUE",
        help="Settings, such as method.grow.epochs=20 ('grace show folder' lists them). For an "
        "existing learner they are changes, saved with the update ('grace set MODEL' lists those "
        "that can change).",
    ),
]
Model = Annotated[Path, option(metavar="MODEL", help="Directory of the learner.")]
Experiment = Annotated[
    str | None,
    option(
        help="Experiment whose settings a new learner starts from; without it they are chosen for "
        "the images and this machine."
    ),
]
Method = Annotated[str | None, option(help="Method, such as grace or der.")]
Backbone = Annotated[str | None, option(help="Backbone, such as resnet18.")]
Weights = Annotated[
    str | None,
    option(
        metavar="FILE|timm",
        help="Pre-trained weights of the backbone: a .safetensors file, or timm for those of the "
        "tag in --backbone.",
    ),
]
Train = Annotated[
    str | None,
    option(
        metavar="PART",
        help="What of the backbone learns: all, last-stages or frozen (the default with "
        "--weights).",
    ),
]
Memory = Annotated[int | None, option(help="Images of old classes to keep.")]
MaxMb = Annotated[
    float | None,
    option(
        metavar="MB",
        help="Largest size of one version of the learner in megabytes (10⁶ bytes); without "
        "--memory, images of old classes fill it. Earlier versions are kept beside it.",
    ),
]
MaxDiskMb = Annotated[
    float | None,
    option(
        min=0,
        metavar="MB",
        help="Largest size of all versions together in megabytes (10⁶ bytes): afterwards the "
        "oldest versions are removed. Default: all are kept.",
    ),
]
Minutes = Annotated[
    float | None,
    option(
        metavar="MINUTES",
        help="Time that training of an update should take at most (default: 3); fewer epochs are "
        "trained then.",
    ),
]
ImageSize = Annotated[int | None, option(help="Side of the images in pixels.")]
Channels = Annotated[int | None, option(help="Channels of the images: 1 grey, 3 colour.")]
Seed = Annotated[int | None, option(help="Seed of all random numbers.")]
Validation = Annotated[
    int | None,
    option(
        help="Images of each class to hold out, a fifth of the class at most; they judge every "
        "update (default: 50)."
    ),
]
MaxDrop = Annotated[
    float | None,
    option(
        min=0,
        max=100,
        metavar="POINTS",
        help="Reject an update if the accuracy on old classes drops by more than this many "
        "percentage points.",
    ),
]
MaxClassDrop = Annotated[
    float | None,
    option(
        min=0,
        max=100,
        metavar="POINTS",
        help="Reject an update if a paired test shows that one old class lost accuracy, and it "
        "lost more than this many percentage points.",
    ),
]
MinNew = Annotated[
    float | None,
    percent(help="Reject an update if fewer percent of the images of new classes are right."),
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


class Given(TypedDict):
    """The options that ``learn`` and ``doctor`` share; ``None`` and ``False``: not given."""

    experiment: Experiment
    method: Method
    backbone: Backbone
    weights: Weights
    train: Train
    memory: Memory
    max_mb: MaxMb
    max_disk_mb: MaxDiskMb
    minutes: Minutes
    image_size: ImageSize
    channels: Channels
    seed: Seed
    validation: Validation
    max_drop: MaxDrop
    max_class_drop: MaxClassDrop
    min_new: MinNew
    skip_unreadable: SkipUnreadable
    skip_duplicates: SkipDuplicates
    discard: Discard
    again: Again
    as_json: AsJson


def with_shared_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one option for each key of ``Given`` in place of its ``**given``."""
    declared = signature(verb)
    own = [p for p in declared.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    shared = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=False if kind.__origin__ is bool else None,
            annotation=kind,
        )
        for name, kind in get_type_hints(Given, include_extras=True).items()
    ]
    vars(verb)["__signature__"] = declared.replace(parameters=[*own, *shared])
    return verb


def split(texts: Sequence[str], given: Given) -> tuple[RequestedSettings, LearnOptions]:
    """Split what was given into settings of a new learner and options of this update.

    The options that name settings come before the ``KEY=VALUE`` texts.

    Args:
        texts: ``KEY=VALUE`` texts.
        given: the values of the options.
    """
    values: dict[str, Any] = {**given}
    how = LearnOptions(**{field.name: values.pop(field.name) for field in fields(LearnOptions)})
    paths = {option: path for path, option in OPTIONS.items()}
    named = [
        f"{paths[option]}={json.dumps(value)}"
        for name, value in values.items()
        if value is not None and (option := f"--{name.replace('_', '-')}") in paths
    ]
    return RequestedSettings(given["experiment"], [*named, *texts]), how
