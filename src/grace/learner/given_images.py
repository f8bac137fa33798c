"""Images and labels as Python programs have them: paths, PIL images, arrays, one or many.

Shapes: N images; C channels, H×W pixels, those of the learner.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grace.base.errors import GraceError
from grace.data.images import Images, TensorImages
from grace.learner.prediction import in_shape
from grace.settings.experiment import DataSettings

Pixelated = Tensor | np.ndarray[Any, Any]
"""uint8: (N, C, H, W), (N, H, W, C), or one image without N; grey ones also without C."""
AnyImage = str | os.PathLike[str] | Image.Image | Pixelated
"""One image: a path, a PIL image, or its pixels."""
_ONE = (str, os.PathLike, Image.Image, Tensor, np.ndarray)
AnyImages = Images | AnyImage | Sequence[AnyImage]
"""One image or many."""


def as_images(
    images: AnyImages, shape: tuple[int, int, int], settings: DataSettings | None = None
) -> Images:
    """Return images of any form as ``Images`` (N, C, H, W).

    Files and PIL images are converted as ``grace learn`` does: upright, in the learner's colours,
    and if its images are squares, resized and made squares. Pixels are taken as they are;
    where (C, H, W) and (H, W, C) are alike, they are taken for (C, H, W).

    Args:
        images: one image or many; a path is a text or a ``Path``.
        shape: the shape (C, H, W) that they must have.
        settings: how files and PIL images become squares, and how large a file's image may be;
            ``None``: the defaults.

    Raises:
        TypeError: for objects that are no images, with advice.
        GraceError: if there are no images, they have another shape, or a file cannot be read.
    """
    if isinstance(images, Images):
        data: Images = images
    else:
        if isinstance(images, _ONE) and not _holds_objects(images):
            images = [images]
        if isinstance(images, bytes) or not isinstance(images, Iterable):
            raise _no_image(images)
        given = [_pixels(image, shape, settings or DataSettings()) for image in images]
        if not given:
            raise GraceError("no images were given")
        data = TensorImages(given[0] if len(given) == 1 else torch.cat(given))
    if len(data) == 0:
        raise GraceError("no images were given")
    if data.shape != shape:
        raise _other_shape(data.shape, shape)
    return data


def as_labels(labels: Iterable[Any], num_images: int) -> list[str]:
    """Return the class names of images as a list of texts.

    Args:
        labels: texts or whole numbers, one for each image.
        num_images: N.

    Raises:
        TypeError: for labels that are no names, with advice.
        GraceError: if there are more or fewer labels than images.
    """
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise TypeError(f"labels must be a list, one name for each image, not {labels!r}")
    names = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
    for name in names:
        if not isinstance(name, str | int | np.integer):
            raise TypeError(f"label {name!r} must be a text: give its name")
    if len(names) != num_images:
        raise GraceError(f"{num_images} images but {len(names)} labels", "give one label each")
    return [str(name) for name in names]


def _pixels(image: object, shape: tuple[int, int, int], settings: DataSettings) -> Tensor:
    """Return one image of any form, or an array of many, as uint8 (N, C, H, W)."""
    if isinstance(image, Tensor | np.ndarray):
        return _batch(image, shape)
    if isinstance(image, str | os.PathLike):
        image = Path(image)
    elif not isinstance(image, Image.Image):
        raise _no_image(image)
    pixels = in_shape(image, shape, settings.fit, settings.max_pixels)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()[None]


def _batch(pixels: Pixelated, shape: tuple[int, int, int]) -> Tensor:
    """Return pixels as (N, C, H, W)."""
    if str(pixels.dtype) not in ("uint8", "torch.uint8"):
        raise TypeError(
            f"pixels must be uint8, from 0 to 255, not {pixels.dtype}: if they lie in [0, 1], "
            "multiply by 255, round and convert them"
        )
    own = np.ascontiguousarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    found = torch.as_tensor(own)
    channels, height, width = shape
    if channels == 1 and found.ndim in (2, 3) and found.shape[-2:] == (height, width):
        found = found.reshape(-1, 1, height, width)
    elif found.ndim == 3:
        found = found[None]
    if found.shape[1:] != shape and found.shape[1:] == (height, width, channels):
        found = found.permute(0, 3, 1, 2).contiguous()
    if found.shape[1:] != shape:
        raise _other_shape(pixels.shape, shape)
    return found


def _holds_objects(images: object) -> bool:
    """Return ``True`` for an array of texts or objects, such as the paths of a table's column."""
    return isinstance(images, np.ndarray) and images.dtype.kind in "OUT"


def _other_shape(found: Sequence[int], shape: tuple[int, int, int]) -> GraceError:
    return GraceError(
        f"images have shape {tuple(found[-3:])}, this learner takes {shape} (channels, height, "
        "width)",
        "resize or convert them",
    )


def _no_image(thing: object) -> TypeError:
    return TypeError(
        f"images must be paths, PIL images or uint8 pixels, not {type(thing).__name__}: give one "
        "image or a list of them"
    )
