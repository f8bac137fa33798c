"""Images that are counted whenever they are read: who looked at what, and when."""

from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from grace.data.images import Images, LabelledImages, TensorImages


@final
class ReadCounts:
    """Counts reads of images, by whose they are and by what is going on."""

    def __init__(self) -> None:
        self.now = ""
        """What is going on."""
        self._sizes: dict[str, int] = {}
        self._counts: dict[tuple[str, str], Tensor] = {}

    def counted(self, data: LabelledImages, owner: str) -> LabelledImages:
        """The same images, of which every read is counted."""
        assert isinstance(data.images, TensorImages)
        self._sizes[owner] = len(data)
        own = torch.arange(len(data))
        return LabelledImages(_CountedImages(data.images, own, self, owner), data.labels)

    def note(self, owner: str, places: Tensor) -> None:
        """Count one read of each of an owner's images at ``places``."""
        found = self._counts.setdefault((owner, self.now), self.of_nobody(owner))
        found.index_add_(0, places, torch.ones_like(places))

    def of(self, owner: str, during: str) -> Tensor:
        """How often each of an owner's images (N,) was read while something went on."""
        return self._counts.get((owner, during), self.of_nobody(owner))

    def of_nobody(self, owner: str) -> Tensor:
        """No reads: N zeros."""
        return torch.zeros(self._sizes[owner], dtype=torch.int64)


@final
class _CountedImages(Images):
    def __init__(self, images: TensorImages, own: Tensor, counts: ReadCounts, owner: str) -> None:
        self._images = images
        self._own = own
        self._counts = counts
        self._owner = owner

    @override
    def __len__(self) -> int:
        return len(self._images)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self._images.shape

    @override
    def gather(self, indices: Tensor) -> Tensor:
        self._counts.note(self._owner, self._own[indices.cpu()])
        return self._images.gather(indices)

    @override
    def subset(self, indices: Tensor) -> "_CountedImages":
        chosen = self._images.subset(indices)
        return _CountedImages(chosen, self._own[indices.cpu()], self._counts, self._owner)

    @override
    def to(self, device: torch.device) -> "_CountedImages":
        return _CountedImages(self._images.to(device), self._own, self._counts, self._owner)

    @property
    @override
    def num_bytes(self) -> int:
        return self._images.num_bytes
