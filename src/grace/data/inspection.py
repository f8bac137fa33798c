"""Look at image files without keeping them: what each is, or why it cannot be used."""

import hashlib
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from grace.data.decoding import FORMATS, centre_square, open_image


@final
@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What a readable image file is."""

    size: tuple[int, int]
    """Width and height in pixels as it is seen, the camera's orientation applied."""
    mode: str
    """PIL's name of the file's kind of pixels: "RGB", "L", "P", "CMYK", "I;16", …"""
    is_rotated: bool
    """Whether the camera's orientation has to be applied."""
    is_animated: bool
    """Whether it has several frames, of which the first is used."""
    key: bytes
    """Hash of the pixels that a learner would get: equal for equal images."""

    @property
    def is_grey(self) -> bool:
        """Whether the file stores grey levels only."""
        return self.mode in ("1", "L", "LA", "La") or self.mode.startswith("I")


@final
@dataclass(frozen=True)
class Unreadable:
    """Why an image file cannot be used, in a few words."""

    reason: str


def inspect_images(
    paths: Sequence[Path], channels: Literal[1, 3], image_size: int | None, num_threads: int = 4
) -> list[ImageFacts | Unreadable]:
    """Decode image files one by one and keep only what was found; never raises for a file.

    Args:
        paths: N files.
        channels: 1 or 3, as the learner would have them.
        image_size: side of the learner's square in pixels; none takes images as they are.
        num_threads: files decoded at once, which bounds the memory.

    Returns:
        One finding per file. With an image size, keys are those of ``selection.pixel_keys`` for
        the images that ``decoding.read_all`` would give.
    """
    # Decoders warn about what is found here anyhow. Filters belong to the process: set once.
    with warnings.catch_warnings(), ThreadPoolExecutor(num_threads) as pool:
        warnings.simplefilter("ignore")
        return list(pool.map(lambda path: _inspected(path, channels, image_size), paths))


def _inspected(
    path: Path, channels: Literal[1, 3], image_size: int | None
) -> ImageFacts | Unreadable:
    try:
        if path.stat().st_size == 0:
            return Unreadable("the file is empty")
        with Image.open(path, formats=FORMATS) as header:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and _most_pixels(header.size, image_size) > limit:
                return Unreadable(f"{header.width}×{header.height} pixels are too many")
            mode, orientation = header.mode, header.getexif().get(ExifTags.Base.Orientation, 1)
            # A camera's MPO holds a second view or a preview, not the next moment.
            num_frames = 1 if header.format == "MPO" else getattr(header, "n_frames", 1)
        image = open_image(path, channels)
        return ImageFacts(
            size=image.size,
            mode=mode,
            is_rotated=orientation in range(2, 9),
            is_animated=num_frames > 1,
            key=_key(image, image_size),
        )
    except Image.DecompressionBombError:
        return Unreadable("it has too many pixels")
    except UnidentifiedImageError:
        return Unreadable("it is no image, whatever its name says")
    except FileNotFoundError:
        return Unreadable("it is a link to nothing")
    # Decoders raise whatever a stranger's bytes lead them to, and lack of memory too.
    except Exception:
        return Unreadable("it is damaged, cut off or of a kind that is not supported")


def _most_pixels(size: tuple[int, int], image_size: int | None) -> int:
    """Pixels of an image or of its resized form, which a very narrow image makes huge."""
    area = size[0] * size[1]
    if image_size is None or area == 0:
        return area
    return max(area, image_size * image_size * max(size) // min(size))


def _key(image: Image.Image, image_size: int | None) -> bytes:
    size = image.size
    if image_size is not None:
        image = centre_square(image, image_size, image_size)
    pixels = np.asarray(image, dtype=np.uint8)
    planes = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    digest = hashlib.sha256(planes.tobytes())
    if image_size is None:
        digest.update(repr(size).encode())
    return digest.digest()
