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
from grace.data.decoders import pixels_of
from grace.data.images import Images, TensorImages
from grace.learner.prediction import channels_and_side, of_size, read_file
from grace.settings.experiment import DataSettings

Pixelated = Tensor | np.ndarray[Any, Any]
"""uint8: (N, C, H, W), (N, H, W, C), or one image without N; grey ones also without C."""
AnyImage = str | os.PathLike[str] | Image.Image | Pixelated
"""One image: a path, a PIL image, or its pixels."""
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
    settings = settings or DataSettings()
    if isinstance(images, Images):
        data = images
    elif isinstance(images, Tensor | np.ndarray) and not _holds_objects(images):
        data = TensorImages(_batch(images, shape))
    else:
        given = [_one(image, shape, settings) for image in _each(images)]
        data = TensorImages(torch.stack(given) if given else torch.empty(0, *shape).byte())
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
    if isinstance(labels, str | bytes):
        raise TypeError(f"labels must be a list, one name for each image: give [{labels!r}]")
    if isinstance(labels, Tensor | np.ndarray):
        labels = labels.tolist()
    if not isinstance(labels, Iterable):
        raise TypeError(f"labels must be a list of names, not {_kind(labels)}: give one each")
    names = list(labels)
    for name in names:
        if not isinstance(name, str | int | np.integer) or isinstance(name, bool):
            raise TypeError(f"label {name!r} must be a text, not {_kind(name)}: give its name")
    if len(names) != num_images:
        raise GraceError(f"{num_images} images but {len(names)} labels", "give one label each")
    return [str(name) for name in names]


def _one(image: object, shape: tuple[int, int, int], settings: DataSettings) -> Tensor:
    """Return one image of any form as uint8 (C, H, W)."""
    if isinstance(image, Tensor | np.ndarray):
        batch = _batch(image, shape)
        if len(batch) != 1:
            raise _other_shape(image.shape, shape)
        return batch[0].cpu()
    if isinstance(image, str | os.PathLike):
        pixels = read_file(Path(image), shape, settings.fit, settings.max_pixels)
    elif isinstance(image, Image.Image):
        channels, side = channels_and_side(shape)
        pixels = of_size(pixels_of(image, channels, side, settings.fit), shape, "an image")
    else:
        raise TypeError(f"an image must be a path, a PIL image or uint8 pixels, not {_kind(image)}")
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _batch(pixels: Pixelated, shape: tuple[int, int, int]) -> Tensor:
    """Return pixels as (N, C, H, W); those of another shape as they are."""
    if isinstance(pixels, np.ndarray):
        if pixels.dtype != np.uint8:
            raise _other_type(str(pixels.dtype), "(images * 255).round().astype('uint8')")
        pixels = torch.from_numpy(np.ascontiguousarray(pixels))
    elif pixels.dtype != torch.uint8:
        raise _other_type(str(pixels.dtype), "(images * 255).round().byte()")
    channels, height, width = shape
    size, last = tuple(pixels.shape), (height, width, channels)
    if size[1:] == shape and len(size) == 4:
        return pixels
    if size == shape:
        return pixels[None]
    if size[1:] == last and len(size) == 4:
        return pixels.permute(0, 3, 1, 2).contiguous()
    if size == last:
        return pixels.permute(2, 0, 1).contiguous()[None]
    if channels == 1 and size[-2:] == (height, width) and len(size) in (2, 3):
        return pixels.reshape(-1, 1, height, width)
    raise _other_shape(size, shape)


def _each(images: object) -> Sequence[object]:
    if isinstance(images, str | os.PathLike | Image.Image):
        return [images]
    if isinstance(images, bytes) or not isinstance(images, Iterable):
        raise TypeError(
            f"images must be paths, PIL images or uint8 pixels, not {_kind(images)}: give one "
            "image or a list of them"
        )
    return list(images)


def _holds_objects(images: Pixelated) -> bool:
    """Return ``True`` for an array of texts or objects, such as the paths of a table's column."""
    return isinstance(images, np.ndarray) and images.dtype.kind in "OUT"


def _other_shape(found: Sequence[int], shape: tuple[int, int, int]) -> GraceError:
    return GraceError(
        f"images have shape {tuple(found[-3:])}, this learner takes {shape} (channels, height, "
        "width)",
        "resize or convert them",
    )


def _other_type(found: str, advice: str) -> TypeError:
    return TypeError(
        f"pixels must be uint8, from 0 to 255, not {found}: if they lie in [0, 1], give {advice}"
    )


def _kind(thing: object) -> str:
    return type(thing).__name__
