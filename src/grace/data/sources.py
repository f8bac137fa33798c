"""Load a data set by its name. torch is imported only when a data set is loaded."""

from typing import TYPE_CHECKING, cast

from grace.settings.experiment import DataSettings
from grace.settings.registry import resolve

if TYPE_CHECKING:
    from grace.data.images import Dataset


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
