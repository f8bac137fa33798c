"""Exemplars that are stored as WebP: encode them, and decode what a stranger may have made.

A stored image is a WebP file, or its raw pixels where these are not longer. So it never takes more
bytes than its pixels, and the decoder gets less than that.

Shapes: N images, B of them in a batch, C channels, H×W pixels.
"""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from grace.base.errors import GraceError
from grace.data.decoders import as_array
from grace.data.decoding import opened
from grace.data.images import Images, TensorImages, image_keys
from grace.settings.experiment import MemorySettings

BYTES_PER_IMAGE = 4
"""Bytes that an encoded image takes in a learner's file beside its own: its length."""
BYTES_PER_CLASS = 130
"""Bytes that the header of a class's file is longer than that of raw pixels."""
FEWEST_BYTES = 24
"""No WebP file is shorter."""


@final
class EncodedImages(Images):
    """Images that are stored as files of an image format; their pixels are in memory too.

    Args:
        pixels: uint8 (N, C, H, W), those of the files.
        files: N files, or raw pixels.
    """

    def __init__(self, pixels: Tensor, files: Sequence[bytes]) -> None:
        assert len(pixels) == len(files)
        self.decoded = TensorImages(pixels)
        self.files = tuple(files)

    @classmethod
    def read(cls, files: Iterable[bytes], shape: tuple[int, int, int]) -> Self:
        """Decode files whose pixels must have a shape; N is at least 1.

        Raises:
            GraceError: for a file that is no WebP image of this size, or is damaged.
        """
        held = tuple(files)
        return cls(torch.stack([_decoded(file, shape) for file in held]), held)

    @override
    def __len__(self) -> int:
        return len(self.files)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self.decoded.shape

    @override
    def gather(self, indices: Tensor) -> Tensor:
        return self.decoded.gather(indices)

    @override
    def plain(self) -> TensorImages:
        return self.decoded

    @override
    def subset(self, indices: Tensor) -> "EncodedImages":
        return EncodedImages(self.gather(indices), [self.files[i] for i in indices.tolist()])

    @override
    def to(self, device: torch.device) -> TensorImages:
        return self.decoded.to(device)

    @property
    @override
    def num_bytes(self) -> int:
        return sum(map(len, self.files))


@final
@dataclass(frozen=True)
class Codec:
    """Turns pixels into WebP files of a quality, 1 to 100; 100 loses nothing."""

    quality: int

    @property
    def is_lossy(self) -> bool:
        """``True`` if decoded pixels differ from those that were encoded."""
        return self.quality < 100

    def encode(self, image: Tensor) -> bytes:
        """Return an image, uint8 (C, H, W), as a file, or as raw pixels if these are not longer."""
        raw = image.contiguous().cpu().numpy()
        # WebP has no grey images: three equal channels take hardly more.
        picture = Image.fromarray(np.broadcast_to(raw, (3, *raw.shape[1:])).transpose(1, 2, 0))
        file = io.BytesIO()
        picture.save(file, "WEBP", quality=self.quality, lossless=not self.is_lossy)
        data = file.getvalue()
        return data if len(data) < raw.size else raw.tobytes()

    def encoded(self, pixels: Tensor, known: Images) -> EncodedImages:
        """Encode images, uint8 (N, C, H, W); those that are stored already keep their files.

        A file of decoded pixels would lose a little more each time.
        """
        images, files = TensorImages(pixels.cpu()), dict[bytes, bytes]()
        if isinstance(known, EncodedImages):
            files = dict(zip(image_keys(known), known.files, strict=True))
        keys = image_keys(images) if files else [b""] * len(images)
        found = [
            files.get(key) or self.encode(image)
            for key, image in zip(keys, images.pixels, strict=True)
        ]
        if not self.is_lossy or not found:
            return EncodedImages(images.pixels, found)
        return EncodedImages.read(found, images.shape)


@final
@dataclass(frozen=True, eq=False)
class AsStored(Images):
    """Images as they will be once they are stored with loss; computed when they are needed."""

    images: Images
    codec: Codec

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
        found = [_decoded(self.codec.encode(image), self.shape) for image in pixels]
        return torch.stack(found) if found else pixels

    @override
    def subset(self, indices: Tensor) -> "AsStored":
        return AsStored(self.images.subset(indices), self.codec)

    @override
    def to(self, device: torch.device) -> "AsStored":
        return self

    @property
    @override
    def num_bytes(self) -> int:
        return self.images.num_bytes


def codec_of(settings: MemorySettings) -> Codec | None:
    """Return the codec of a memory; ``None``: it stores raw pixels."""
    return None if settings.format == "raw" else Codec(settings.quality)


def most_bytes(settings: MemorySettings, shape: tuple[int, int, int]) -> int:
    """Return the most bytes that the only exemplar (C, H, W) of a class takes."""
    return math.prod(shape) + (0 if settings.format == "raw" else BYTES_PER_IMAGE + BYTES_PER_CLASS)


def _decoded(file: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Decode one stored image, uint8 (C, H, W); its header must name the size.

    Raises:
        GraceError: if it is no WebP image of this size, or is damaged.
    """
    channels, height, width = shape
    if len(file) >= math.prod(shape):
        if len(file) > math.prod(shape):
            raise GraceError("a stored image is longer than its pixels")
        return torch.frombuffer(bytearray(file), dtype=torch.uint8).view(shape)
    try:
        with opened(io.BytesIO(file), ("WEBP",), width * height) as image:
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
