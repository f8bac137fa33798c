"""Several collections of images as one: a task's images followed by the exemplars.

Shapes: N images in all, B of them in a batch.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from grace.data.crops import crop_boxes, resized_crop
from grace.data.encoded import EncodedImages
from grace.data.images import CroppableImages, Images, LabelledImages, TensorImages


@final
class JoinedImages(CroppableImages):
    """Several collections of one image shape, one after another; some may be files.

    Args:
        parts: non-empty collections, in order.
    """

    def __init__(self, parts: Sequence[Images]) -> None:
        assert parts
        assert len({part.shape for part in parts}) == 1
        self._parts = tuple(parts)
        lengths = torch.tensor([len(part) for part in parts])
        self._ends = lengths.cumsum(0)
        self._starts = self._ends - lengths

    @override
    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self._parts[0].shape

    @override
    def gather(self, indices: Tensor) -> Tensor:
        return self._collect(indices, lambda part, own, places: part.gather(own))

    @override
    def gather_crops(self, indices: Tensor, draws: Tensor) -> Tensor:
        def crop(part: Images, own: Tensor, places: Tensor) -> Tensor:
            if isinstance(part, CroppableImages):
                return part.gather_crops(own, draws[places])
            boxes = crop_boxes(draws[places], *part.shape[1:])
            crops = resized_crop(part.gather(own).cpu(), boxes, self.shape[1])
            return crops.round_().clamp_(0, 255).to(torch.uint8)

        return self._collect(indices, crop)

    @override
    def subset(self, indices: Tensor) -> "Images":
        owners = self._owners(indices)
        runs = [0, *(owners.diff().nonzero().flatten() + 1).tolist(), len(indices)]
        parts: list[Images] = []
        for start, end in pairwise(runs):
            if start < end:
                number = int(owners[start])
                own = indices[start:end] - self._starts[number]
                parts.append(self._parts[number].subset(own))
        return join(parts) if parts else self._parts[0].subset(indices)

    @override
    def to(self, device: torch.device) -> "JoinedImages":
        # Files are read through the CPU: exemplars on a GPU would be copied back for every batch.
        return self

    @property
    @override
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self._parts)

    def _owners(self, indices: Tensor) -> Tensor:
        """Return the part (B,) that each index belongs to."""
        return torch.searchsorted(self._ends, indices, right=True)

    def _collect(self, indices: Tensor, take: Callable[[Images, Tensor, Tensor], Tensor]) -> Tensor:
        """Fill a batch with ``take(part, indices in the part, places in the batch)``."""
        indices = indices.cpu()
        owners = self._owners(indices)
        out = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        for number, part in enumerate(self._parts):
            places = (owners == number).nonzero().flatten()
            if len(places):
                out[places] = take(part, indices[places] - self._starts[number], places).cpu()
        return out


def join(parts: Sequence[Images]) -> Images:
    """Join collections of one image shape in order; empty ones may have any shape.

    Images in memory stay one tensor, on the device of the first part.
    """
    full = [part.decoded if isinstance(part, EncodedImages) else part for part in parts]
    full = [part for part in full if len(part)] or full[:1]
    if len(full) == 1:
        return full[0]
    tensors = [part.pixels for part in full if isinstance(part, TensorImages)]
    if len(tensors) == len(full):
        return TensorImages(torch.cat([tensor.to(tensors[0].device) for tensor in tensors]))
    return JoinedImages(full)


def concatenate(parts: Sequence[LabelledImages]) -> LabelledImages:
    """Join labelled images in order, e.g. a task's images and then the exemplars.

    Args:
        parts: at least one collection; all non-empty ones have the same image shape.

    Returns:
        All images in order, with their labels.
    """
    images = join([part.images for part in parts])
    return LabelledImages(images, torch.cat([part.labels for part in parts]))
