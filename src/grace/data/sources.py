"""Data sources by name. Loads no torch before a source is used."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from grace.configs.experiment import DataSettings
from grace.configs.registry import DATASETS
from grace.text.nearest import did_you_mean
from grace.text.refusals import GraceError

if TYPE_CHECKING:
    from grace.data.images import Dataset


def load_dataset(settings: DataSettings) -> "Dataset":
    """Load the images a settings model names.

    Args:
        settings: source, root, filters, size.

    Returns:
        Training and test images with labels, class names and normalisation constants.

    Raises:
        ValueError: for an unknown source (the nearest known one is named), and for whatever is
            wrong with its files; nothing is changed on disk then.
    """
    loaders = {
        "digits": "arrays:load_digits",
        "cifar10": "cifar:load_cifar10",
        "cifar100": "cifar:load_cifar100",
        "imagenet100": "folders:load_imagenet100",
        "folder": "folders:load_folder",
    }
    assert loaders.keys() == DATASETS.keys()
    if settings.source not in loaders:
        raise GraceError(
            f"unknown data.source '{settings.source}'{did_you_mean(settings.source, loaders)} "
            f"(known: {', '.join(loaders)})"
        )
    module, _, name = loaders[settings.source].partition(":")
    return cast("Dataset", getattr(import_module(f"grace.data.{module}"), name)(settings))
