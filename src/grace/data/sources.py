"""Load a data set by its name. torch is imported only when a data set is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from grace.base.errors import GraceError
from grace.base.files import given_path
from grace.data.folder_tree import refuse_no_folder
from grace.settings.experiment import DataSettings, ExperimentSettings
from grace.settings.problems import refuse_missing_weights
from grace.settings.registry import resolve

if TYPE_CHECKING:
    from grace.data.images import Dataset


def given_root(settings: DataSettings) -> Path:
    """Return the folder of the images; refuse one that is not given or not there."""
    if settings.root is None:
        raise GraceError(
            f"the source '{settings.source}' needs the folder of its images", "set data.root"
        )
    root = given_path(settings.root)
    refuse_no_folder(root)
    return root


def refuse_missing(settings: ExperimentSettings) -> None:
    """Refuse a folder of images or a file of weights that is not there; torch takes seconds."""
    refuse_missing_weights(settings.backbone)
    if settings.data.source in ("folder", "imagenet100"):
        given_root(settings.data)


def load_dataset(settings: DataSettings) -> "Dataset":
    """Load the images that the settings name.

    Args:
        settings: source, root, filters, size.

    Returns:
        Training and test images with labels, class names and normalisation constants.

    Raises:
        GraceError: for an unknown source (the message names the nearest known one), or a problem
            with its files; then nothing is changed on disk.
    """
    return cast("Dataset", resolve("dataset", settings.source)(settings))
