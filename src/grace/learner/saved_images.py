"""The images of a saved learner: the tensors of their files, and how these are checked and read.

Shapes: N images, C channels, H×W pixels, D features.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from grace.base.errors import DamagedError, GraceError
from grace.data.encoded import EncodedImages
from grace.data.images import Images, TensorImages
from grace.learner.document import Document, ObjectRef
from grace.learner.held_out import HeldOut
from grace.learner.store import ModelStore
from grace.methods.method import Method

MAX_FEATURES = 16_384
"""The most numbers of one image's features that a saved learner may have."""


@final
@dataclass(frozen=True)
class SavedImages:
    """The images of a version, as read."""

    exemplars: dict[int, Images]
    """By class index, in herding order."""
    held_out: HeldOut
    features: list[tuple[Images, Tensor]]
    """Images (N, C, H, W) and their features (N, D), where these are saved."""


def to_tensors(images: Images, method: Method) -> dict[str, Tensor]:
    """Return the tensors of a file of images.

    Raw pixels are ``images`` (N, C, H, W); encoded images are ``encoded``, their bytes one after
    another, with ``lengths`` (N,). ``features`` (N, D) follow if the backbone never changes.

    Args:
        images: N exemplars or held-out images of a class.
        method: knows the features, if any.
    """
    if isinstance(images, EncodedImages):
        data = bytearray(b"".join(images.files))
        kept = {
            "encoded": torch.frombuffer(data, dtype=torch.uint8),
            "lengths": torch.tensor([len(file) for file in images.files], dtype=torch.int32),
        }
    else:
        assert isinstance(images, TensorImages)
        kept = {"images": images.pixels}
    known = None if method.features is None else method.features.halves(images)
    return kept | ({} if known is None else {"features": known})


def read_images(document: Document, home: ModelStore) -> SavedImages:
    """Read the exemplars and the held-out images of a version, with their features."""
    found = SavedImages({}, HeldOut(), [])
    for index, ref in document.exemplars.items():
        count, what = document.exemplar_counts.get(index), f"exemplars of class {index}"
        found.exemplars[index] = _read(document, home, ref, count, what, found.features)
    for index, ref in document.validation.items():
        count, what = document.validation_counts.get(index), f"held-out images of class {index}"
        found.held_out.add(index, _read(document, home, ref, count, what, found.features))
    return found


def count_images(
    document: Document,
    home: ModelStore,
    tensors: Mapping[str, Tensor],
    count: int | None,
    what: str,
) -> int:
    """Refuse tensors that are no images of a learner; return their number.

    Args:
        document: the version that they belong to.
        home: of the learner.
        tensors: those of a file, maybe on the meta device; see ``to_tensors``.
        count: number of images that the document states; ``None``: it states none.
        what: name of the file in messages.
    """
    held = {**tensors}
    features = held.pop("features", None)
    if held.keys() == {"encoded", "lengths"}:
        number = _count_encoded(held, document.shape)
        is_stated = count is not None
    else:
        number = _count_pixels(held)
        is_stated = True
    # A method that trains its backbone keeps no features.
    trains = document.settings.method.traits.trains_backbone
    if not number or not is_stated or (trains and features is not None):
        raise DamagedError(f"the {what} of '{home.path}' are damaged: they are no images")
    shape = tuple(held["images"].shape[1:]) if "images" in held else document.shape
    if shape != document.shape:
        raise DamagedError(
            f"the {what} of '{home.path}' have shape {shape}, not {document.shape}: they belong to "
            "another learner"
        )
    if count not in (None, number):
        raise DamagedError(
            f"the {what} of '{home.path}' are damaged: there are {number}, not {count}"
        )
    if features is not None and (
        features.dtype != torch.float16
        or features.ndim != 2
        or len(features) != number
        or features.shape[1] > MAX_FEATURES
    ):
        raise DamagedError(f"the features of the {what} of '{home.path}' are damaged")
    return number


def _count_pixels(held: Mapping[str, Tensor]) -> int:
    """Return the number of images in raw pixels; 0 for anything else."""
    pixels = held.get("images")
    if pixels is None or len(held) > 1 or pixels.dtype != torch.uint8 or not pixels.ndim:
        return 0
    return len(pixels)


def _count_encoded(held: Mapping[str, Tensor], shape: tuple[int, int, int]) -> int:
    """Return the number of encoded images; 0 for tensors that hold none."""
    data, lengths = held["encoded"], held["lengths"]
    if data.dtype != torch.uint8 or lengths.dtype != torch.int32:
        return 0
    if data.ndim != 1 or lengths.ndim != 1 or len(data) > len(lengths) * math.prod(shape):
        return 0
    return len(lengths)


def _read(
    document: Document,
    home: ModelStore,
    ref: ObjectRef,
    count: int | None,
    what: str,
    with_features: list[tuple[Images, Tensor]],
) -> Images:
    """Read images (N, C, H, W).

    Args:
        document: of the version.
        home: where it lies.
        ref: the object that holds them.
        count: their number where the document states it.
        what: their name in messages.
        with_features: the images are added to it with their features (N, D), if it holds any.
    """
    tensors = home.read(ref, what)
    count_images(document, home, tensors, count, what)
    try:
        images = _decoded(tensors, document.shape)
    except GraceError as error:
        reason = f"the {what} of '{home.path}' are damaged: {error.what}"
        raise DamagedError(reason) from error
    features = tensors.get("features")
    if features is not None:
        if not bool(features.isfinite().all()):
            raise DamagedError(f"the features of the {what} of '{home.path}' are damaged")
        with_features.append((images, features))
    return images


def _decoded(tensors: Mapping[str, Tensor], shape: tuple[int, int, int]) -> Images:
    """Return the images that tensors hold, decoded.

    Raises:
        GraceError: for encoded images that are damaged, or of another shape.
    """
    if "images" in tensors:
        return TensorImages(tensors["images"])
    data, lengths = tensors["encoded"].numpy().tobytes(), tensors["lengths"].tolist()
    if min(lengths) < 1 or sum(lengths) != len(data):
        raise GraceError("their lengths are not those of their bytes")
    ends = torch.tensor(lengths).cumsum(0).tolist()
    files = [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return EncodedImages.read(files, shape)
