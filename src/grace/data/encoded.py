"""Exemplars that are stored as PNG or JPEG: encode them, and decode what a stranger may have made.

A stored image is a file of one of the two formats, or its raw pixels where these are not longer.
So it never takes more bytes than its pixels, and the decoder gets less than that.

Shapes: N images, B of them in a batch, C channels, H×W pixels.
"""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from grace.base.errors import GraceError
from grace.data.decoders import Pixels, as_array
from grace.data.decoding import opened
from grace.data.images import Images, TensorImages, image_keys
from grace.settings.experiment import MemorySettings

FORMATS = ("PNG", "JPEG")
"""Formats of stored images, by PIL's names."""
BYTES_PER_IMAGE = 4
"""Bytes that an encoded image takes in a learner's file beside its own: its length."""
BYTES_PER_CLASS = 130
"""Bytes that the header of a class's file is longer than that of raw pixels."""
FEWEST_BYTES = 64
"""No file of these formats is shorter."""


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
            GraceError: for a file that is no PNG or JPEG of this size and colour, or is damaged.
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
    """Turns pixels into files of an image format.

    Args:
        format: PNG keeps every pixel, JPEG is smaller.
        quality: of JPEG, 1 to 100. Higher: closer to the pixels, and larger.
    """

    format: Literal["png", "jpeg"]
    quality: int

    @property
    def is_lossy(self) -> bool:
        """``True`` if decoded pixels differ from those that were encoded."""
        return self.format == "jpeg"

    def encode(self, image: Tensor) -> bytes:
        """Return an image, uint8 (C, H, W), as a file, or as raw pixels if these are not longer."""
        pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()
        picture = Image.fromarray(pixels[:, :, 0] if len(image) == 1 else pixels)
        file = io.BytesIO()
        if self.format == "png":
            picture.save(file, "PNG", optimize=True)
        else:
            # Full resolution of the colours: in small images their edges count.
            picture.save(file, "JPEG", quality=self.quality, subsampling=0, optimize=True)
        data = file.getvalue()
        return data if len(data) < pixels.size else image.contiguous().cpu().numpy().tobytes()

    def encoded(self, pixels: Tensor, known: Images) -> EncodedImages:
        """Encode images; those that are stored already keep their files.

        A JPEG file of decoded pixels would lose a little more each time.

        Args:
            pixels: uint8 (N, C, H, W).
            known: images that are stored, maybe encoded.
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
class AsStored(Images):
    """Images as they will be once they are stored with loss; computed when they are needed.

    Args:
        images: the images as they are.
        codec: encodes them.
    """

    def __init__(self, images: Images, codec: Codec) -> None:
        self._images = images
        self._codec = codec

    @override
    def __len__(self) -> int:
        return len(self._images)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self._images.shape

    @override
    def gather(self, indices: Tensor) -> Tensor:
        pixels = self._images.gather(indices).cpu()
        found = [_decoded(self._codec.encode(image), self.shape) for image in pixels]
        return torch.stack(found) if found else pixels

    @override
    def subset(self, indices: Tensor) -> "AsStored":
        return AsStored(self._images.subset(indices), self._codec)

    @override
    def to(self, device: torch.device) -> "AsStored":
        return self

    @property
    @override
    def num_bytes(self) -> int:
        return self._images.num_bytes


def codec_of(settings: MemorySettings) -> Codec | None:
    """Return the codec of a memory; ``None``: it stores raw pixels."""
    return None if settings.format == "raw" else Codec(settings.format, settings.quality)


def most_bytes(settings: MemorySettings, shape: tuple[int, int, int]) -> int:
    """Return the most bytes that the only exemplar (C, H, W) of a class takes."""
    return math.prod(shape) + (0 if settings.format == "raw" else BYTES_PER_IMAGE + BYTES_PER_CLASS)


def _decoded(file: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Decode one stored image, uint8 (C, H, W).

    Raises:
        GraceError: if it is no PNG or JPEG of this size and colour, or is damaged.
    """
    channels, height, width = shape
    if len(file) == math.prod(shape):
        return torch.frombuffer(bytearray(file), dtype=torch.uint8).view(shape)
    if len(file) > math.prod(shape):
        raise GraceError("a stored image is longer than its pixels")
    pixels = _pixels(file, 1 if channels == 1 else 3, (width, height))
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _pixels(data: bytes, channels: Literal[1, 3], size: tuple[int, int]) -> Pixels:
    """Decode an image file whose size and colour are known, as (H, W, C) uint8.

    They are compared with its header before anything is decoded; nothing is converted.

    Args:
        data: the file.
        channels: 1 for 8-bit grey, 3 for RGB.
        size: width and height in pixels.

    Raises:
        GraceError: if it is damaged, or another kind of image.
    """
    width, height = size
    try:
        with opened(io.BytesIO(data), FORMATS, width * height) as image:
            if image.size != size or image.mode != ("L" if channels == 1 else "RGB"):
                raise GraceError(f"it is a {image.mode} image of {image.width}×{image.height}")
            return as_array(image, channels)
    except GraceError:
        raise
    except Exception as error:  # Damaged bytes can make decoders raise anything.
        raise GraceError("it is damaged or no image") from error
