"""Image files as cameras, people and accidents make them, for tests of folders."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def noise(seed: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(levels)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def put(path: Path, content: bytes | Image.Image) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else encoded(content))
    return path


def fill(folder: Path, count: int, seed: int, size: tuple[int, int] = (8, 8)) -> None:
    for number in range(count):
        put(folder / f"{number:03}.png", noise(1000 * seed + number, size))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that declares any number of black pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def row(*colours: tuple[int, ...], mode: str = "RGB") -> Image.Image:
    """An image one pixel high."""
    image = Image.new(mode, (len(colours), 1))
    for place, colour in enumerate(colours):
        image.putpixel((place, 0), colour)
    return image


def oriented(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif)


def animated(first: Image.Image, second: Image.Image, kind: str) -> bytes:
    options = {"lossless": True} if kind == "WEBP" else {}
    return encoded(first, kind, save_all=True, append_images=[second], **options)
