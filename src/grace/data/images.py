"""Labelled images: what tasks, memory and test sets are made of, alone and joined.

Shapes: N images, B of them in a batch, C channels, H×W pixels, K columns of draws per image.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from grace.base.errors import GraceError
from grace.data.image_changes import crop_boxes, resized_crop


class Images(ABC):
    """An ordered collection of N images that are read by index."""

    has_files: ClassVar[bool] = False
    """Some of them may be files, larger than ``gather`` gives them: ``gather_crops`` takes these at
    full size."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images N."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one gathered image."""

    @abstractmethod
    def gather(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices`` (B,), as uint8 (B, C, H, W), deterministically."""

    def gather_crops(self, indices: Tensor, draws: Tensor) -> Tensor:
        """Return random resized crops of the images at ``indices`` (B,), uint8 (B, C, H, W).

        ``draws`` (B, 22) decide the boxes: see ``image_changes.crop_boxes``.
        """
        boxes = crop_boxes(draws, *self.shape[1:])
        crops = resized_crop(self.gather(indices).cpu(), boxes, self.shape[1])
        return crops.round_().clamp_(0, 255).to(torch.uint8)

    @abstractmethod
    def subset(self, indices: Tensor) -> "Images":
        """Return the images at ``indices`` (M,), in that order, as a new collection."""

    def to(self, device: torch.device) -> "Images":
        """Return the same images with pixels in memory on ``device``; files are not loaded."""
        return self

    @property
    def num_bytes(self) -> int:
        """Bytes of the images as they are stored; of raw pixels N·C·H·W."""
        return len(self) * math.prod(self.shape)

    def digest(self) -> bytes:
        """Return the SHA-256 of shape and pixels: equal for equal images."""
        digest = hashlib.sha256(repr((len(self), self.shape)).encode())
        for start in range(0, len(self), 1000):
            places = torch.arange(start, min(start + 1000, len(self)))
            digest.update(self.gather(places).cpu().contiguous().numpy().tobytes())
        return digest.digest()


@final
class TensorImages(Images):
    """Images held in memory as one uint8 tensor, on any device.

    Args:
        pixels: uint8 (N, C, H, W).
        files: N files that they are stored as; ``None``: they are stored as they are.
    """

    def __init__(self, pixels: Tensor, files: Sequence[bytes] | None = None) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise GraceError(
                f"images must be a uint8 tensor (N, C, H, W), "
                f"got {pixels.dtype} with shape {tuple(pixels.shape)}"
            )
        assert files is None or len(files) == len(pixels)
        self.pixels = pixels
        self.files = files

    @override
    def __len__(self) -> int:
        return self.pixels.shape[0]

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @override
    def gather(self, indices: Tensor) -> Tensor:
        return self.pixels.index_select(0, indices.to(self.pixels.device))

    @override
    def subset(self, indices: Tensor) -> "TensorImages":
        files = self.files and [self.files[index] for index in indices.tolist()]
        return TensorImages(self.gather(indices), files)

    @override
    def to(self, device: torch.device) -> "TensorImages":
        return TensorImages(self.pixels.to(device))

    @property
    @override
    def num_bytes(self) -> int:
        return self.pixels.numel() if self.files is None else sum(map(len, self.files))


@final
@dataclass(frozen=True)
class LabelledImages:
    """Images with class indices (positions in the class order), int64 (N,) on the CPU."""

    images: Images
    labels: Tensor

    def __post_init__(self) -> None:
        assert self.labels.dtype == torch.int64
        assert self.labels.shape == (len(self.images),)

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor) -> "LabelledImages":
        """Return the images and labels at ``indices`` (M,), in that order."""
        return LabelledImages(self.images.subset(indices), self.labels[indices])

    def to(self, device: torch.device) -> "LabelledImages":
        """Return the same images with pixels in memory on ``device``; labels stay on the CPU."""
        return LabelledImages(self.images.to(device), self.labels)

    def of_class(self, index: int) -> "LabelledImages":
        """Return the images of one class, in dataset order."""
        return self.subset((self.labels == index).nonzero().flatten())


@final
@dataclass(frozen=True)
class Dataset:
    """The training and test images of a data set, with original labels and class names.

    ``mean`` and ``std`` are the normalisation constants of its pixels scaled to [0, 1], one per
    channel; they belong to a learner trained on it.
    """

    name: str
    train: LabelledImages
    test: LabelledImages
    class_names: Sequence[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: Sequence[str] = ()
    """Remarks on loading, e.g. "12 test images are also training images"."""

    def classes_of(self, part: LabelledImages) -> list[str]:
        """Return the class name of each image of a part."""
        return [self.class_names[label] for label in part.labels.tolist()]


@final
class JoinedImages(Images):
    """Images of several collections of one image shape; some may be files.

    They stay on the CPU, through which files are read: exemplars on a GPU would be copied back for
    every batch.

    Args:
        parts: non-empty collections.
        owners: (N,) number of the part of each image; ``None``: all images, part by part.
        rows: (N,) its place in the part.
    """

    has_files = True

    def __init__(
        self, parts: Sequence[Images], owners: Tensor | None = None, rows: Tensor | None = None
    ) -> None:
        assert parts
        assert len({part.shape for part in parts}) == 1
        self._parts = parts
        lengths = torch.tensor([len(part) for part in parts])
        if owners is None or rows is None:
            owners = torch.arange(len(parts)).repeat_interleave(lengths)
            rows = torch.cat([torch.arange(len(part)) for part in parts])
        self._owners = owners
        self._rows = rows

    @override
    def __len__(self) -> int:
        return len(self._owners)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self._parts[0].shape

    @override
    def gather(self, indices: Tensor) -> Tensor:
        return self._collect(indices, lambda part, own, places: part.gather(own))

    @override
    def gather_crops(self, indices: Tensor, draws: Tensor) -> Tensor:
        return self._collect(
            indices, lambda part, own, places: part.gather_crops(own, draws[places])
        )

    @override
    def subset(self, indices: Tensor) -> "Images":
        owners, rows = self._owners[indices], self._rows[indices]
        if len(owners.unique()) > 1:
            return JoinedImages(self._parts, owners, rows)
        return self._parts[int(owners[0]) if len(owners) else 0].subset(rows)

    def _collect(self, indices: Tensor, take: Callable[[Images, Tensor, Tensor], Tensor]) -> Tensor:
        """Fill a batch with ``take(part, indices in the part, places in the batch)``."""
        owners, rows = self._owners[indices.cpu()], self._rows[indices.cpu()]
        out = torch.empty((len(owners), *self.shape), dtype=torch.uint8)
        for number in owners.unique().tolist():
            places = (owners == number).nonzero().flatten()
            out[places] = take(self._parts[number], rows[places], places).cpu()
        return out


def join(parts: Sequence[Images]) -> Images:
    """Join collections of one image shape in order; empty ones may have any shape.

    Images in memory stay one tensor, on the device of the first part, without their files.
    """
    full = [part for part in parts if len(part)] or parts[:1]
    tensors = [part.pixels for part in full if isinstance(part, TensorImages)]
    if len(tensors) == len(full):
        first = tensors[0]
        others = [tensor.to(first.device) for tensor in tensors]
        return TensorImages(first if len(tensors) == 1 else torch.cat(others))
    return full[0] if len(full) == 1 else JoinedImages(full)


def concatenate(parts: Sequence[LabelledImages]) -> LabelledImages:
    """Join labelled images in order, e.g. a task's images and then the exemplars.

    Args:
        parts: at least one collection; all non-empty ones have the same image shape.

    Returns:
        All images in order, with their labels.
    """
    images = join([part.images for part in parts])
    return LabelledImages(images, torch.cat([part.labels for part in parts]))


def pixel_keys(pixels: Tensor) -> list[bytes]:
    """Hash each image (N, C, H, W) uint8; equal images have equal keys."""
    return [hashlib.sha256(image).digest() for image in pixels.contiguous().cpu().numpy()]


def image_keys(images: Images) -> list[bytes]:
    """Return N hashes, one of each image: equal images have equal keys."""
    parts = torch.arange(len(images)).split(1000)
    return [key for part in parts for key in pixel_keys(images.gather(part))]
