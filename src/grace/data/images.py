"""Labelled images: what tasks, memory and test sets are made of.

Shapes: N images, B of them in a batch, C channels, H×W pixels, K columns of draws per image.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from grace.base.errors import GraceError


class Images(ABC):
    """An ordered collection of N images that are read by index."""

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

    @abstractmethod
    def subset(self, indices: Tensor) -> "Images":
        """Return the images at ``indices`` (M,), in that order, as a new collection."""

    @abstractmethod
    def to(self, device: torch.device) -> "Images":
        """Return the same images with pixels in memory on ``device``; files are not loaded."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of the images as they are stored; of raw pixels N·C·H·W."""

    def digest(self) -> bytes:
        """Return the SHA-256 of shape and pixels: equal for equal images."""
        digest = hashlib.sha256(repr((len(self), self.shape)).encode())
        for start in range(0, len(self), 1000):
            places = torch.arange(start, min(start + 1000, len(self)))
            digest.update(self.gather(places).cpu().contiguous().numpy().tobytes())
        return digest.digest()


class CroppableImages(Images):
    """Images that are stored larger than ``gather`` gives them, and can be cropped at full size."""

    @abstractmethod
    def gather_crops(self, indices: Tensor, draws: Tensor) -> Tensor:
        """Return random resized crops of the images at ``indices`` (B,), uint8 (B, C, H, W).

        ``draws`` (B, 22) decide the boxes (``crops.crop_boxes``); equal draws give equal crops.
        """


@final
class TensorImages(Images):
    """Images held in memory as one uint8 tensor, on any device."""

    def __init__(self, pixels: Tensor) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise GraceError(
                f"images must be a uint8 tensor (N, C, H, W), "
                f"got {pixels.dtype} with shape {tuple(pixels.shape)}"
            )
        self.pixels = pixels

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
        return TensorImages(self.gather(indices))

    @override
    def to(self, device: torch.device) -> "TensorImages":
        return TensorImages(self.pixels.to(device))

    @property
    @override
    def num_bytes(self) -> int:
        return self.pixels.numel()


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
