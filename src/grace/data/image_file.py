"""Open image files of strangers: regular files whose parts before the pixels are not too large.

A decoder reads metadata whole, and tags of a few bytes can name one block of the file thousands of
times. What would take much more memory than the file is refused before a decoder sees it.
"""

import io
import os
import re
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from grace.base.errors import GraceError

_FLAGS = os.O_RDONLY
if sys.platform == "win32":
    _FLAGS |= os.O_BINARY
else:
    _FLAGS |= os.O_NONBLOCK | os.O_NOCTTY

_MAX_METADATA = 64 * 2**20
_MAX_SKIPPED = 2**20
"""Bytes between the segments of a JPEG file; each takes the decoder a tenth of a microsecond."""
_MAX_SEGMENTS = 2**16
"""Segments before the pixels of a JPEG file; 64 MiB of metadata have a thousand."""
_MAX_CHUNKS = 2**19
"""Chunks of a PNG file; each takes the decoder some three microseconds."""
_MAX_GIF = 2**27
"""Bytes of a GIF file; what is no block takes the decoder a tenth of a microsecond for each."""
_HARMLESS = 16 * 2**10
"""Files of fewer bytes cannot name themselves so often that they take more than 25 MB."""
_UNBOUNDED = {b"avif": "AVIF", b"avis": "AVIF", b"mif1": "AVIF or HEIC", b"msf1": "AVIF or HEIC"}
_UNBOUNDED |= dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "HEIC")
"""Formats whose images are frames of films, by the brand at the start of the file."""
_TAG_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TAG_SIZES |= {16: 8, 17: 8, 18: 8}
_SUBDIRECTORIES = (34665, 34853, 40965)
"""Tags of TIFF and EXIF that lead to further directories: EXIF, GPS, interoperability."""


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, or a link to one, without waiting for a pipe or touching a device.

    Raises:
        GraceError: if it is no regular file.
        OSError: if it is missing or cannot be opened.
    """
    # Opening a device may have effects, and the file may be replaced before it is opened.
    _refuse_special(path.stat().st_mode)
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        _refuse_special(os.fstat(file.fileno()).st_mode)
        yield file


def _refuse_special(mode: int) -> None:
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise GraceError("it is no regular file")


def refuse_frames_of_films(file: BinaryIO) -> None:
    """Refuse AVIF and HEIC files; leave the position at the start.

    The frame inside may have far more pixels than the header says: the decoder makes all of them
    and shrinks them to the header's size, and nothing in PIL limits it. A file of one kilobyte that
    said 8×8 pixels took 253 MB.

    Raises:
        GraceError: if it is such a file; it says what to do.
    """
    start = file.read(12)
    file.seek(0)
    name = _UNBOUNDED.get(start[8:12]) if start[4:8] == b"ftyp" else None
    if name is not None:
        raise GraceError(
            f"{name} images are not read, as their headers do not limit the memory that they take",
            "convert it to JPEG or PNG",
        )


def refuse_oversized_parts(file: BinaryIO) -> None:
    """Refuse a file whose metadata a decoder could not hold; leave its position at the start.

    Raises:
        GraceError: if the metadata is too large or names itself too often.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size < _HARMLESS:
        return
    start = file.read(12)
    if size > 2**32:
        raise GraceError(f"the file has {size} bytes, too many for an image")
    if start[:3] == b"\xff\xd8\xff":
        _refuse_segments(file)
    elif start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        refuse_repeated_tags(file, size)
    elif start[:4] == b"\x89PNG" and size > 12 * _MAX_CHUNKS:  # A chunk has at least 12 bytes.
        _refuse_chunks(file)
    elif start[:4] == b"GIF8" and size > _MAX_GIF:
        raise GraceError(f"the file has {size} bytes, too many for a GIF image")
    elif start[:4] == b"RIFF" and size > _MAX_METADATA:
        # This decoder holds the whole file, which may be little else than frames or metadata.
        num_pixels = min(_webp_pixels(file), 2**27)
        if size > _MAX_METADATA + 4 * num_pixels:
            raise GraceError(
                f"the file has {size} bytes, too many for a WebP image of {num_pixels} pixels"
            )
    file.seek(0)


def _webp_pixels(file: BinaryIO) -> int:
    """Return the pixels that a WebP file's first chunk promises; 0: it promises none."""
    file.seek(12)
    kind, bits = file.read(8)[:4], int.from_bytes(file.read(10), "little")
    if kind == b"VP8X":  # Flags and three bytes for later, then two sides less one.
        return ((bits >> 32) % 2**24 + 1) * ((bits >> 56) % 2**24 + 1)
    if kind == b"VP8L":  # A signature of one byte, then two sides less one.
        return ((bits >> 8) % 2**14 + 1) * ((bits >> 22) % 2**14 + 1)
    # Lossy: a tag of three bytes and a start code of three, then two sides of 14 bits.
    return (bits >> 48) % 2**14 * ((bits >> 64) % 2**14) if kind == b"VP8 " else 0


def refuse_repeated_tags(file: BinaryIO, size: int) -> None:
    """Refuse a TIFF or EXIF block whose tags name more bytes than there are.

    Args:
        file: holds the block from its byte 0.
        size: bytes of the block.

    Raises:
        GraceError: if its tags take much more memory than the block.
    """
    total = 0
    for offset, num_bytes in _tag_values(file):
        total += max(min(num_bytes, size - offset), 0)
        if total > max(2 * size, _MAX_METADATA):
            raise GraceError("its tags name the same bytes again and again")


def refuse_exif(exif: bytes) -> None:
    """Refuse an EXIF block as ``refuse_repeated_tags`` does."""
    if len(exif) >= _HARMLESS // 4:
        block = exif.removeprefix(b"Exif\0\0")
        refuse_repeated_tags(io.BytesIO(block), len(block))


def _tag_values(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield offset and length of the values of a TIFF block's first directory and those below."""
    file.seek(0)
    head = file.read(16)
    order = ">" if head[:2] == b"MM" else "<"
    is_big = head[2:4] in (b"+\0", b"\0+")
    number, entry = ("Q", struct.Struct(f"{order}HHQQ")) if is_big else ("L", None)
    entry = entry or struct.Struct(f"{order}HHLL")
    if len(head) < 16:
        return
    waiting = list(struct.unpack_from(f"{order}{number}", head, 8 if is_big else 4))
    for _ in range(8):  # Three kinds of directories below the first, each maybe twice.
        if not waiting:
            return
        file.seek(min(waiting.pop(), 2**40))
        length = 8 if is_big else 2
        counted = file.read(length).ljust(length, b"\0")
        (count,) = struct.unpack(f"{order}{'Q' if is_big else 'H'}", counted)
        data = file.read(min(count, 2**20) * entry.size)
        for tag, kind, amount, value in entry.iter_unpack(
            data[: len(data) // entry.size * entry.size]
        ):
            if tag in _SUBDIRECTORIES:
                waiting.append(value)
            num_bytes = amount * _TAG_SIZES.get(kind, 0)
            if num_bytes > (8 if is_big else 4):
                yield value, num_bytes


def _refuse_segments(file: BinaryIO) -> None:
    """Refuse the segments before the pixels of a JPEG file."""
    file.seek(2)
    exif, total, num_skipped, num_segments = b"", 0, 0, 0
    while True:
        mark = file.read(2)
        if len(mark) < 2:
            return
        if mark[0] != 0xFF or mark[1] in (0x00, 0xFF) or 0xD0 <= mark[1] <= 0xD8:
            file.seek(-1, os.SEEK_CUR)  # Decoders skip what is no segment, byte by byte.
            num_skipped += 1
            if num_skipped > _MAX_SKIPPED:
                raise GraceError("it has too many bytes that are no segment")
            continue
        if mark[1] in (0xDA, 0xD9):
            break
        length = int.from_bytes(file.read(2), "big") - 2
        if length < 0:
            return
        total += length
        num_segments += 1
        if mark[1] == 0xE1 and length > 6:
            block = file.read(length)
            if block[:6] == b"Exif\0\0":
                exif += block[6:] if exif else block
        elif mark[1] == 0xE2 and file.read(4) == b"MPF\0":
            refuse_exif(file.read(max(length - 4, 0)))
        else:
            file.seek(length - (4 if mark[1] == 0xE2 else 0), os.SEEK_CUR)
        if total > _MAX_METADATA or num_segments > _MAX_SEGMENTS:
            raise GraceError("its metadata is too large")
    refuse_exif(exif)


def _refuse_chunks(file: BinaryIO) -> None:
    """Refuse too large chunks beside the pixels of a PNG file, and too many chunks."""
    file.seek(8)
    num_chunks = 0
    while len(head := file.read(8)) == 8:
        num_chunks += 1
        if num_chunks > _MAX_CHUNKS:
            raise GraceError(f"it has more than {_MAX_CHUNKS} parts")
        length = int.from_bytes(head[:4], "big")
        if head[4:] not in (b"IDAT", b"fdAT") and length > _MAX_METADATA:
            raise GraceError("its metadata is too large")
        file.seek(length + 4, os.SEEK_CUR)


def refuse_many_scans(file: BinaryIO, num_pixels: int) -> None:
    """Refuse a progressive JPEG file whose pixels are refined too often; each time costs time.

    Args:
        file: the file, of which every position is left unchanged.
        num_pixels: number of its pixels.

    Raises:
        GraceError: if it has more than 32 scans and more than 10⁹ pixels in all of them.
    """
    most = max(32, 10**9 // max(num_pixels, 1))
    place = file.tell()
    size = file.seek(0, os.SEEK_END)
    if size // 12 <= most:  # A scan has at least 12 bytes.
        file.seek(place)
        return
    file.seek(0)
    num_scans, last = 0, b""
    while block := file.read(2**20):
        num_scans += len(re.findall(rb"\xff\xda", last + block))
        last = block[-1:]
    if num_scans > most:
        # Bytes behind the image, such as a film, may look like scans.
        file.seek(0)
        num_scans = _count_scans(file.read(2**28))
    file.seek(place)
    if num_scans > most:
        raise GraceError(f"its {num_scans} scans are too many")


def _count_scans(data: bytes) -> int:
    """Count the scans between the start and the end of the first image of a JPEG file."""
    count, place = 0, 2
    marker = re.compile(rb"\xff[\x01-\xcf\xd9-\xfe]")
    while (found := marker.search(data, place)) is not None:
        kind = data[found.start() + 1]
        if kind == 0xD9:
            break
        count += kind == 0xDA
        place = found.end() + max(int.from_bytes(data[found.end() : found.end() + 2], "big"), 2)
    return count
