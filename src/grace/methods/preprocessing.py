"""How images are prepared for a backbone: its normalisation constants and the size it is for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, final

from grace.base.errors import GraceError
from grace.data.arrays import for_channels
from grace.data.augmentation import Enlarge
from grace.nn.resnets import TORCHVISION_RESNETS
from grace.nn.timm_backbone import pretraining_of
from grace.settings.experiment import BackboneSettings

Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel, of pixels in [0, 1]."""


@final
@dataclass(frozen=True)
class Pretraining:
    """What the images of a backbone's pre-training looked like."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    size: int = 224
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"


def pretraining(settings: BackboneSettings) -> Pretraining | None:
    """Return how a backbone was pre-trained; ``None`` if nobody has stated it.

    Raises:
        GraceError: if timm is needed and not installed, or has no such model.
    """
    if settings.name in TORCHVISION_RESNETS:
        return Pretraining()
    if not settings.name.startswith("timm/"):
        return None
    stated = pretraining_of(settings.name.removeprefix("timm/"))
    interpolation = "bicubic" if stated["interpolation"] == "bicubic" else "bilinear"
    return Pretraining(
        mean=tuple(stated["mean"]),
        std=tuple(stated["std"]),
        size=int(stated["input_size"][-1]),
        interpolation=cast("Literal['bilinear', 'bicubic']", interpolation),
    )


def constants(
    settings: BackboneSettings, channels: int, mean: Sequence[float], std: Sequence[float]
) -> Constants:
    """Return the constants that images are normalised by.

    Args:
        settings: their ``mean`` and ``std`` come first, then those of the pre-training if there
            are weights.
        channels: channels C of the images. One mean of three channels stands for grey images.
        mean: constants of the images, used where the backbone has none.
        std: likewise.

    Raises:
        GraceError: if the settings have constants for another number of channels.
    """
    if settings.mean is not None and settings.std is not None:
        if len(settings.mean) != channels:
            raise GraceError(
                f"backbone.mean has {len(settings.mean)} numbers, the images have {channels} "
                "channels",
                "give one number for each channel",
            )
        return settings.mean, settings.std
    stated = pretraining(settings) if settings.weights != "none" else None
    if stated is None or len(stated.mean) != 3:
        return tuple(mean), tuple(std)
    return for_channels(stated.mean, channels), for_channels(stated.std, channels)


def enlargement(settings: BackboneSettings, shape: tuple[int, int, int]) -> Enlarge | None:
    """Return how images (C, H, W) are enlarged for a backbone; ``None``: they keep their size.

    Raises:
        GraceError: if the images are larger than ``input_size``, not square, or nobody has stated
            the size of the backbone's pre-training.
    """
    size = settings.input_size
    if size is None:
        return None
    stated = pretraining(settings)
    if size == "model":
        if stated is None:
            raise GraceError(
                f"nobody has stated a size for backbone '{settings.name}'",
                "set backbone.input_size to a number of pixels",
            )
        size = stated.size
    _, height, width = shape
    if height != width:
        raise GraceError(
            f"backbone.input_size enlarges squares, but the images have {width}×{height} pixels",
            "set data.image_size",
        )
    if height > size:
        raise GraceError(
            f"images of {height} pixels are larger than backbone.input_size {size}",
            f"set data.image_size={size}",
        )
    usual = stated.interpolation if stated else "bilinear"
    return Enlarge(size=size, interpolation=settings.interpolation or usual)


def input_shape(settings: BackboneSettings, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the shape (C, H, W) in which images of a shape reach the backbone."""
    enlarge = enlargement(settings, shape)
    return shape if enlarge is None else (shape[0], enlarge.size, enlarge.size)
