"""Features of images under a backbone that never changes: computed once, then remembered.

Shapes: N images, D features.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self, final

import torch
from torch import Tensor

from grace.data.images import Images, image_keys


@final
class FeatureCache:
    """Maps images, by the hash of their pixels, to their features in half precision.

    All features are rounded to half precision before use, so that remembered ones equal those
    computed again. Since pixels decide the features, copies of a method share one cache.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Tensor] = {}
        self._saved: list[tuple[Images, Tensor]] = []
        """Features of a saved learner whose images were not hashed yet: a prediction needs none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def restore(self, saved: Iterable[tuple[Images, Tensor]]) -> None:
        """Replace the content by the features (n, D) of saved images."""
        self._rows, self._saved = {}, list(saved)

    def missing(self, keys: Sequence[bytes]) -> Tensor:
        """Return the positions (m,) of images whose features are not known."""
        self._hash_saved()
        return torch.tensor([i for i, key in enumerate(keys) if key not in self._rows]).long()

    def add(self, keys: Sequence[bytes], features: Tensor) -> None:
        """Remember the features (N, D) of images."""
        largest = torch.finfo(torch.float16).max
        rounded = features.float().clamp(-largest, largest).half().cpu()
        # Copied one by one: a view would keep the rows of all others alive.
        self._rows |= {key: row.clone() for key, row in zip(keys, rounded, strict=True)}

    def rows(self, keys: Sequence[bytes]) -> Tensor:
        """Return features (N, D), float32 on the CPU, of images that are all known."""
        self._hash_saved()
        return torch.stack([self._rows[key] for key in keys]).float()

    def halves(self, images: Images) -> Tensor | None:
        """Return features (N, D) in half precision, to save them; ``None`` if one is missing."""
        keys = image_keys(images)
        return None if len(self.missing(keys)) else self.rows(keys).half()

    def retain(self, images: Collection[Images]) -> None:
        """Drop the features of all images but these."""
        self._hash_saved()
        kept = {key for each in images for key in image_keys(each)}
        self._rows = {key: row for key, row in self._rows.items() if key in kept}

    def _hash_saved(self) -> None:
        for images, features in self._saved:
            self.add(image_keys(images), features)
        self._saved = []
