"""Exemplar memory: herding, quotas, nearest class means, and the images stored raw or as WebP.

A stored image is a WebP file, or its raw pixels where these are not longer. So it never takes more
bytes than its pixels, and the decoder of a file that a stranger may have made gets less than that.

Shapes: N images of one class, C channels, H×W pixels, d feature width, B test images, K classes.
"""

import io
import math
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from grace.base.errors import GraceError
from grace.data.decoders import as_array
from grace.data.images import Images, LabelledImages, TensorImages, concatenate, image_keys, join
from grace.settings.experiment import MemorySettings

BYTES_PER_IMAGE = 4
"""Bytes that an encoded image takes in a learner's file beside its own: its length."""
BYTES_PER_CLASS = 130
"""Bytes that the header of a class's file is longer than that of raw pixels."""
FEWEST_BYTES = 24
"""No WebP file is shorter."""


def normalise_features(features: Tensor) -> Tensor:
    """Scale rows to unit length: ``v / (‖v‖ + 1e-8)``, features (N, d) → float32 (N, d).

    Reference:
        docs/protocols.md#herding.
    """
    features = features.float()
    norms: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features / (norms + 1e-8)


def herd(features: Tensor, count: int) -> Tensor:
    """Herding: choose images whose running mean stays closest to the class mean.

    With ``v_i`` the normalised features, ``μ`` their plain mean (not re-normalised) and ``S`` the
    sum of those picked so far, pick k is ``argmin_i ‖μ - (S + v_i) / k‖₂`` over the images left;
    the first index wins ties. O(N d) per pick.

    Args:
        features: (N, d) features of all images of one class, in dataset order.
        count: images to choose, at least 0; a class with fewer gives all it has.

    Returns:
        (min(count, N),) int64 indices in the order picked, on the features' device.

    Reference:
        docs/protocols.md#herding.
    """
    vectors = normalise_features(features)
    mean = vectors.mean(dim=0)
    total = torch.zeros_like(mean)
    taken = vectors.new_zeros(len(vectors))
    picked: list[Tensor] = []
    for k in range(1, min(count, len(vectors)) + 1):
        distance = torch.linalg.vector_norm(mean - (total + vectors) / k, dim=1)
        pick = (distance + taken).argmin().unsqueeze(0)
        # Indexing by tensors keeps the loop free of waits for the device.
        taken.index_fill_(0, pick, torch.inf)
        total = total + vectors.index_select(0, pick).squeeze(0)
        picked.append(pick)
    return torch.cat(picked) if picked else torch.empty(0, dtype=torch.int64, device=mean.device)


def class_mean(features: Tensor) -> Tensor:
    """Average the normalised features of a class's exemplars, scaled to unit length again.

    Args:
        features: (N, d) features of the stored exemplars, N at least 1.

    Returns:
        (d,) float32.

    Reference:
        docs/protocols.md#class-means.
    """
    return F.normalize(normalise_features(features).mean(dim=0), dim=0)


def nearest_mean(features: Tensor, means: Tensor) -> Tensor:
    """Score classes by closeness to their means: ``-‖v - μ_c‖²`` with ``v`` normalised.

    Args:
        features: (B, d) features of test images.
        means: (K, d) class means of unit length.

    Returns:
        (B, K) scores in [-4, 0] up to rounding; the largest is the prediction.

    Reference:
        docs/protocols.md#classifiers.
    """
    vectors = normalise_features(features)
    squares = (vectors**2).sum(dim=1, keepdim=True) + (means**2).sum(dim=1)
    return 2 * vectors @ means.T - squares


def quota(memory_size: int, num_classes: int, per_class: int | None = None) -> int:
    """Return the exemplars per class: ``memory_size // num_classes`` (M // K), or a fixed number.

    The remainder is not distributed. Size 0 means no memory and gives 0.

    Args:
        memory_size: exemplars in all (M), at least 0. More: less forgetting, longer phases.
        num_classes: classes seen (K), at least 1.
        per_class: fixed number per class, which replaces the shared size.

    Raises:
        GraceError: if the memory cannot hold one exemplar of each class.

    Reference:
        docs/protocols.md#exemplar-memory.
    """
    if per_class is not None:
        return per_class
    if 0 < memory_size < num_classes:
        raise GraceError(
            f"a memory of {memory_size} images is too small for {num_classes} classes",
            f"set memory.size={num_classes}, or 0 for no memory",
        )
    return memory_size // num_classes


def encode(image: Tensor, quality: int) -> bytes:
    """Return an image, uint8 (C, H, W), as a file, or as raw pixels if these are not longer.

    Quality 100 loses nothing.
    """
    raw = image.contiguous().cpu().numpy()
    # WebP has no grey images: three equal channels take hardly more.
    picture = Image.fromarray(np.broadcast_to(raw, (3, *raw.shape[1:])).transpose(1, 2, 0))
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=quality, lossless=quality == 100)
    data = file.getvalue()
    return data if len(data) < raw.size else raw.tobytes()


def decode_stored(files: Sequence[bytes], shape: tuple[int, int, int]) -> TensorImages:
    """Decode stored images, N at least 1, whose pixels must have a shape (C, H, W).

    Raises:
        GraceError: for a file that is no WebP image of this size, or is damaged.
    """
    return TensorImages(torch.stack([_decoded(file, shape) for file in files]), tuple(files))


def _decoded(file: bytes, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    if len(file) >= math.prod(shape):
        if len(file) > math.prod(shape):
            raise GraceError("a stored image is longer than its pixels")
        return torch.frombuffer(bytearray(file), dtype=torch.uint8).view(shape)
    try:
        with Image.open(io.BytesIO(file), formats=("WEBP",)) as image:
            # Before anything is decoded, so that no file takes more memory than its pixels.
            if image.size != (width, height) or image.mode != "RGB":
                raise GraceError(f"it is a {image.mode} image of {image.width}×{image.height}")
            # Three equal channels have their level as luma.
            grey = channels == 1
            levels = as_array(image.convert("L") if grey else image, 1 if grey else 3)
    except GraceError:
        raise
    except Exception as error:  # Damaged bytes can make decoders raise anything.
        raise GraceError("it is damaged or no image") from error
    return torch.from_numpy(np.ascontiguousarray(levels.transpose(2, 0, 1)))


def encoded(pixels: Tensor, known: Images, quality: int) -> TensorImages:
    """Encode images, uint8 (N, C, H, W); those that are stored already keep their files.

    A file of decoded pixels would lose a little more each time.
    """
    images, files = TensorImages(pixels.cpu()), dict[bytes, bytes]()
    if isinstance(known, TensorImages) and known.files:
        files = dict(zip(image_keys(known), known.files, strict=True))
    keys = image_keys(images) if files else [b""] * len(images)
    found = [
        files.get(key) or encode(image, quality)
        for key, image in zip(keys, images.pixels, strict=True)
    ]
    if quality == 100 or not found:
        return TensorImages(images.pixels, found)
    return decode_stored(found, images.shape)


@final
@dataclass(frozen=True, eq=False)
class AsStored(Images):
    """Images as they will be once they are stored with loss; computed when they are needed."""

    images: Images
    quality: int

    @override
    def __len__(self) -> int:
        return len(self.images)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self.images.shape

    @override
    def gather(self, indices: Tensor) -> Tensor:
        pixels = self.images.gather(indices).cpu()
        found = [_decoded(encode(image, self.quality), self.shape) for image in pixels]
        return torch.stack(found) if found else pixels

    @override
    def subset(self, indices: Tensor) -> "AsStored":
        return AsStored(self.images.subset(indices), self.quality)


def most_bytes(settings: MemorySettings, shape: tuple[int, int, int]) -> int:
    """Return the most bytes that the only exemplar (C, H, W) of a class takes."""
    return math.prod(shape) + (0 if settings.format == "raw" else BYTES_PER_IMAGE + BYTES_PER_CLASS)


@final
@dataclass(frozen=True)
class Room:
    """The bytes of a learner's ceiling, for weights, method state and exemplars together.

    Args:
        num_bytes: bytes in all.
        image_bytes: bytes of one exemplar, at most.
    """

    num_bytes: int
    image_bytes: int

    def left(self, weight_bytes: int) -> int:
        """Return the bytes that are left for exemplars beside weights and method state."""
        return max(0, self.num_bytes - weight_bytes)

    def quota(self, num_classes: int, weight_bytes: int, counts: Sequence[int] = ()) -> int:
        """Return the exemplars per class that fit beside weights and method state.

        ``(room - weights) // (classes · image)``, and 0 if the weights alone are too large. A class
        that has fewer images than this leaves its room to the others.

        Args:
            num_classes: number of classes, at least 1.
            weight_bytes: bytes of weights and method state.
            counts: the images of each class; a class that is left out has any number.
        """
        left, small = self.left(weight_bytes) // self.image_bytes, sorted(counts)
        for place, count in enumerate(small[: num_classes - 1]):
            if count * (num_classes - place) > left:
                return left // (num_classes - place)
            left -= count
        return left // max(1, num_classes - len(small[: num_classes - 1]))


@final
class ExemplarMemory:
    """The stored images of seen classes, per class index and in herding order.

    Pixels are stored (uint8, on the CPU), so that a saved learner can be updated on another
    machine; without loss unless ``memory.format`` is ``webp``.

    Args:
        settings: size, or a fixed number per class.
        keep_all: keep every image, as joint training does; images in files are not copied.
    """

    def __init__(self, settings: MemorySettings, keep_all: bool = False) -> None:
        self.settings = settings
        self.keep_all = keep_all
        self._encodes = settings.format != "raw" and not keep_all
        self.original_counts: dict[int, int] = {}
        """Number of training images seen, per class index (not only the stored ones)."""
        self.room: Room | None = None
        """Bytes under the learner's ceiling; ``None`` without a ceiling."""
        self._images: dict[int, Images] = {}

    def __len__(self) -> int:
        """Return the number of exemplars."""
        return sum(len(images) for images in self._images.values())

    def copy(self) -> "ExemplarMemory":
        """Return an independent memory of the same images; no pixel is copied."""
        twin = copy(self)
        twin.restore(self._images, self.original_counts)
        return twin

    @property
    def classes(self) -> list[int]:
        """Class indices that have exemplars, ascending."""
        return sorted(index for index, images in self._images.items() if len(images))

    @property
    def largest_class(self) -> int:
        """Number of exemplars of the class that has most; 0 without exemplars."""
        return max(map(len, self._images.values()), default=0)

    @property
    def num_bytes(self) -> int:
        """Bytes of the exemplars as they are stored: raw pixels, or files."""
        return sum(images.num_bytes for images in self._images.values())

    def quota(self, num_classes: int, weight_bytes: int = 0, coming: Tensor | None = None) -> int:
        """Return the exemplars per class after ``num_classes`` classes; see ``quota``.

        Under a ceiling they also fit beside ``weight_bytes`` of weights and method state. How many
        encoded images fit is known only when they are stored: this is then the most that could, and
        ``fit`` keeps those that do.

        Args:
            num_classes: number of classes.
            weight_bytes: bytes of weights and method state.
            coming: labels (N,) of images that may be stored beside the present ones. Classes that
                then have few leave room under a ceiling to the others. ``None``: not known.
        """
        if self.keep_all:
            return sys.maxsize
        size = sys.maxsize if self.settings.size is None else self.settings.size
        wanted = quota(size, num_classes, self.settings.per_class)
        if self.room is None:
            return wanted
        if self._encodes:
            return min(wanted, self.room.left(weight_bytes) // (num_classes * FEWEST_BYTES))
        counts = Counter({index: len(images) for index, images in self._images.items()})
        counts.update(() if coming is None else coming.tolist())
        known = () if coming is None else counts.values()
        return min(wanted, self.room.quota(num_classes, weight_bytes, [n for n in known if n]))

    def as_stored(self, data: LabelledImages) -> LabelledImages:
        """Return images as they would be as exemplars: equal, unless storing loses detail."""
        if not self._encodes or self.settings.quality == 100:
            return data
        return LabelledImages(AsStored(data.images, self.settings.quality), data.labels)

    def fit(self, weight_bytes: int) -> None:
        """Keep as many exemplars per class as fit under the ceiling by their real sizes.

        Args:
            weight_bytes: bytes of weights and method state, beside which they must fit.
        """
        held = [images for images in self._images.values() if isinstance(images, TensorImages)]
        if self.room is None or not (self._encodes or any(images.files for images in held)):
            return
        sizes = [self._sizes(images) for images in held]

        def needed(quota: int) -> int:
            return sum(BYTES_PER_CLASS + sum(own[:quota]) for own in sizes)

        left = self.room.left(weight_bytes)
        self.reduce(bisect_right(range(1, self.largest_class + 1), left, key=needed))

    def _sizes(self, images: TensorImages) -> list[int]:
        """Return the bytes of each exemplar in a learner's file."""
        assert self.room is not None
        raw = math.prod(images.shape)
        beside = self.room.image_bytes - most_bytes(self.settings, images.shape)  # Its features.
        if images.files is None:
            return [raw + beside] * len(images)
        return [len(file) + BYTES_PER_IMAGE + beside for file in images.files]

    def record_originals(self, labels: Tensor) -> None:
        """Add training images with labels (N,) to ``original_counts``."""
        for index, count in enumerate(torch.bincount(labels).tolist()):
            if count:
                self.original_counts[index] = self.original_counts.get(index, 0) + count

    def reduce(self, quota: int) -> None:
        """Keep the first ``quota`` exemplars of each class, in its stored order."""
        for index, images in self._images.items():
            if len(images) > quota:
                self._images[index] = images.subset(torch.arange(quota))

    def store(self, class_index: int, images: Images, order: Tensor) -> None:
        """Replace the exemplars of a class.

        Args:
            class_index: position of the class in the class order.
            images: N images of the class.
            order: (m,) int64 distinct indices into ``images``, in herding order.
        """
        assert len(set(order.tolist())) == len(order)
        order = order.cpu()
        if self._encodes:
            known, quality = self.of_class(class_index), self.settings.quality
            self._images[class_index] = encoded(images.gather(order), known, quality)
        elif isinstance(images, TensorImages) or self.keep_all:
            self._images[class_index] = images.subset(order).to(torch.device("cpu"))
        else:
            self._images[class_index] = TensorImages(images.gather(order))

    def keep(self, data: LabelledImages) -> None:
        """Add all images to a memory that keeps everything."""
        present = sorted(set(data.labels.tolist()))
        data = concatenate([self.data(), data])
        for index in present:
            images = data.of_class(index).images
            self.store(index, images, torch.arange(len(images)))

    def restore(self, images: Mapping[int, Images], original_counts: Mapping[int, int]) -> None:
        """Replace the content by saved images per class and saved counts of training images."""
        self._images = dict(images)
        self.original_counts = dict(original_counts)

    def forget(self, class_index: int) -> None:
        """Delete a class's exemplars and the count of its images."""
        self._images.pop(class_index, None)
        self.original_counts.pop(class_index, None)

    def of_class(self, class_index: int) -> Images:
        """Return the exemplars of one class in herding order; empty if it has none."""
        return self._images.get(class_index, _no_images())

    def data(self) -> LabelledImages:
        """Return all exemplars class by class, each in herding order.

        An empty memory gives 0 images of shape (0, 0, 0), which can be joined to any others.
        """
        images = [self._images[index] for index in self.classes]
        counts = torch.tensor([len(part) for part in images], dtype=torch.int64)
        labels = torch.tensor(self.classes, dtype=torch.int64).repeat_interleave(counts)
        return LabelledImages(join(images or [_no_images()]), labels)


def _no_images() -> TensorImages:
    return TensorImages(torch.empty(0, 0, 0, 0, dtype=torch.uint8))
