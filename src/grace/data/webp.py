"""Decode large WebP images with less memory than PIL takes."""

import os
from typing import TYPE_CHECKING, Any

from PIL import Image

from grace.base.errors import GraceError

if TYPE_CHECKING:
    from torch import Tensor

_LARGE = 2**20
"""Pixels of an image that PIL's decoder may not keep beside its own copy."""
_LARGER = 2**25
"""Pixels of an image that torchvision decodes: PIL takes twelve bytes a pixel, it takes eight."""
_MOST = 2**26
"""Pixels of an image that torchvision cannot decode, such as an animation."""


def drop_file(image: Any) -> None:  # noqa: ANN401
    """Let an opened WebP image that torchvision will decode keep no copy of its file."""
    if image.width * image.height >= _LARGER:
        image._decoder = None


def load_webp(image: Any) -> Image.Image:  # noqa: ANN401 - PIL.WebPImagePlugin is untyped
    """Return an opened WebP image with its pixels decoded, the first frame of an animation.

    Raises:
        GraceError: if it would take too much memory.
    """
    num_pixels = image.width * image.height
    if num_pixels < _LARGE:
        image.load()
        return image  # type: ignore[no-any-return]
    pixels = _decoded_once(image) if num_pixels >= _LARGER else None
    if pixels is None:
        if num_pixels > _MOST:
            raise GraceError(
                f"{image.width}×{image.height} pixels are too many for an animated WebP image",
                "save it as PNG or JPEG, or make it smaller",
            )
        if image._decoder is None:
            image.fp.seek(0)
            image._open()
        # PIL would hold the decoder's two copies of the image beside two of its own.
        data = image._decoder.get_next()[0]
        image._decoder = None
        pixels = Image.frombytes(image.mode, image.size, data, "raw", image.rawmode)
    pixels.info = image.info
    return pixels


def _decoded_once(image: Any) -> Image.Image | None:  # noqa: ANN401
    """Return the pixels of an image that is no animation; ``None`` if it is one.

    PIL's decoder of animations keeps two images and returns a third.
    """
    import torch

    if image.is_animated:
        return None
    encoded = bytearray(image.fp.seek(0, os.SEEK_END))
    image.fp.seek(0)
    image.fp.readinto(encoded)
    try:
        from torchvision.io import ImageReadMode

        mode = ImageReadMode.RGB_ALPHA if image.mode == "RGBA" else ImageReadMode.RGB
        # The function around it warns that later versions of torchvision may lack it.
        decode = torch.ops.image.decode_webp
        # (C, H, W), as a view of (H, W, C).
        levels: Tensor = decode(torch.frombuffer(encoded, dtype=torch.uint8), mode.value)
    except (ImportError, AttributeError, RuntimeError):
        # It is damaged or one frame of an animation, or torchvision has no decoder for WebP.
        return None
    return Image.fromarray(levels.permute(1, 2, 0).numpy())
