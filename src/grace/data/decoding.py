"""Decode image files of strangers: few formats, few pixels, and little beside them.

A process of ``decoders`` imports this module and no torch or settings, so that it starts quickly.
Sizes are (width, height), as PIL has them.
"""

import io
import json
import os
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, final

from PIL import ExifTags, Image, UnidentifiedImageError
from typing_extensions import override

from grace.base.errors import GraceError

if TYPE_CHECKING:
    from grace.settings.experiment import DataSettings, Fit

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""The formats that may be decoded, whatever a file's name is; PIL knows others that start programs.
AVIF and HEIC are frames of films: nothing limits the pixels of the frame inside."""
MAX_PIXELS = 89_478_485
"""Largest number of pixels of an image, unless ``data.max_pixels`` says otherwise."""
GREY = 128
"""Level of the margins of a letterboxed image, in all channels."""

SECONDS = 5
"""Processor time that one file may take in a decoder of its own."""

_MAX_FILE = 2**30
_MAX_BESIDE = 2**26
"""Bytes that may be read before the pixels, or beyond the file's length while they are decoded."""
_READ = 100
"""Bytes that one call of ``read`` counts for; decoders skip what they do not know byte by byte."""
_MAX_EXIF = 2**16
"""Bytes of an EXIF block. Each of its tags may name, and so copy, all of it."""
_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_FLAGS |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_LARGE = threading.Lock()
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns an image upright, by the camera's orientation."""


@final
@dataclass(frozen=True)
class Reading:
    """How image files become pixels, and which of them are refused or left out.

    ``use`` says what the images are for. A *learner* uses each image once and refuses an image with
    two classes. An *experiment* measures a data set as it is: copies among the training images are
    used, but test images among them are refused, because they would falsify the accuracy.
    A *benchmark* only counts these, because published results include them.
    """

    channels: Literal[1, 3] = 3
    """1 for grey (ITU-R 601 luma), 3 for RGB."""
    size: int | None = None
    """Side in pixels of the square made of each image; ``None`` keeps each as it is."""
    fit: "Fit" = "crop"
    """How an image becomes a square."""
    max_pixels: int = MAX_PIXELS
    """An image with more pixels is refused before it is decoded."""
    shorter: int | None = None
    """Length in pixels to which ``crop`` resizes the shorter side; ``None`` means ``size``."""
    use: Literal["learner", "experiment", "benchmark"] = "learner"
    skip_unreadable: bool = False
    """Leave unreadable images out instead of refusing them."""
    skip_duplicates: bool = False
    """Leave duplicates out instead of refusing them; in a benchmark, training images that are test
    images too."""

    @classmethod
    def of(cls, settings: "DataSettings") -> "Reading":
        """Return the reading that the settings of the data ask for."""
        names = ("fit", "max_pixels", "skip_unreadable", "skip_duplicates")
        own = {name: getattr(settings, name) for name in names}
        return cls(channels=settings.channels or 3, size=settings.image_size, **own)


@final
class _Metered(io.BufferedReader):
    """A file that gives only so many bytes, in so many calls.

    Tags that name one block thousands of times, and millions of empty parts, end here.
    """

    left = _MAX_BESIDE

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        most = max(self.left, 0) + 1
        data = super().read(most if size is None or size < 0 else min(size, most))
        self.left -= len(data) + _READ
        if self.left < 0:
            raise GraceError("it holds too much beside its pixels")
        return data


@contextmanager
def _opened(path: Path, max_pixels: int) -> Iterator[Any]:
    """Open an image file and read its header; refuse what would cost too much to decode."""
    # Opening a device may have effects. Should a pipe replace the file now, it is not waited for.
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise GraceError("it is no regular file")
    with _Metered(io.FileIO(os.open(path, _FLAGS))) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise GraceError("it is no regular file")
        if facts.st_size > _MAX_FILE:
            raise GraceError(f"the file has {facts.st_size} bytes, too many for an image")
        if file.peek(12)[4:8] == b"ftyp":
            raise GraceError("AVIF and HEIC images are not read", "convert it to JPEG or PNG")
        with Image.open(cast("Any", file), formats=FORMATS) as image:
            num_pixels = image.width * image.height
            # A program may have lowered PIL's own limit.
            own = Image.MAX_IMAGE_PIXELS
            lowered = own if own is not None and own < MAX_PIXELS else sys.maxsize
            if num_pixels > min(max_pixels, lowered):
                raise GraceError(
                    f"{image.width}×{image.height} pixels are too many",
                    f"make it smaller or set data.max_pixels={num_pixels}",
                )
            file.left = facts.st_size + _MAX_BESIDE
            yield image


def upright_size(path: Path, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return width and height of an upright image, from the file's header where it shows them.

    Raises:
        GraceError: as ``decode``, as far as the header shows it.
    """
    with naming(path), _opened(path, max_pixels) as image:
        # Orientations 5 to 8 lie on their side.
        is_turned = _orientation(image) >= 5
        return (image.height, image.width) if is_turned else (image.width, image.height)


def decode(path: Path, reading: Reading) -> tuple[Image.Image, tuple[int, int]]:
    """Read an image file upright, as 8-bit grey or RGB, made a square when a size is given.

    The camera's orientation is applied; 16-bit grey is scaled to 8 bits; transparent parts are
    laid on white, as browsers show them; of an animation the first frame is taken.

    Returns:
        The image, and the file's own width and height, upright.

    Raises:
        GraceError: if the file is no regular file, or has too many pixels.
        Exception: of a decoder, for a damaged file; ``naming`` makes one line of all of them.
    """
    with (
        _opened(path, reading.max_pixels) as image,
        # Large images wait for each other: each takes up to twelve bytes a pixel.
        _LARGE if image.width * image.height > 2**24 else nullcontext(),
    ):
        _orientation(image)  # Kept by PIL: loading a TIFF image takes its tags away.
        image.load()
        turn = _TURNS.get(_orientation(image))
        upright = flattened(image if turn is None else image.transpose(turn), reading.channels)
        return squared(upright, reading), upright.size


def _orientation(image: Image.Image) -> int:
    """Return the camera's orientation, 1 to 8; 1 if there is none."""
    if image.format == "PNG":
        image.load()  # The EXIF block may follow the pixels.
    for name in ("exif", "Raw profile type exif"):
        block = image.info.get(name, b"")
        if len(block) > _MAX_EXIF * (2 if isinstance(block, str) else 1):
            raise GraceError("its metadata is too large")
    found = image.getexif().get(ExifTags.Base.Orientation, 1)
    return found if found in range(1, 9) else 1


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any error of a decoder into one ``GraceError`` that names the file."""
    try:
        yield
    except Exception as error:  # Damaged bytes can make decoders raise anything.
        raise GraceError(*reason(path, error), where=f"cannot read image '{path}'") from None


def reason(path: Path, error: Exception) -> tuple[str, str]:
    """Return in a few words why a file cannot be read, and what to do."""
    remedy = "replace or remove it"
    match error:
        case FileNotFoundError() if not path.is_symlink():
            return "it does not exist", "check the spelling"
        case GraceError():
            return error.what, error.remedy or remedy
        case Image.DecompressionBombError() | Image.DecompressionBombWarning():
            what = "it has too many pixels"
        case MemoryError():
            what = "decoding it takes too much memory"
        case FileNotFoundError():
            what = "it is a link to nothing"
        case OSError() if error.strerror:
            what = error.strerror.lower()
        case _ if path.stat().st_size == 0:
            what = "the file is empty"
        case UnidentifiedImageError():
            what = "its content is not an image"
        case _:
            what = "it is damaged, cut off or of a kind that is not supported"
    return what, remedy


def flattened(image: Image.Image, channels: Literal[1, 3]) -> Image.Image:
    """Convert any mode to 8-bit grey or RGB; transparent parts are laid on white."""
    if image.mode == "F":
        raise GraceError("its pixels are floating-point numbers, which have no known range")
    if image.mode.startswith("I"):
        import numpy as np

        levels = np.asarray(image).astype(np.int32).clip(0, 65535)
        # Rounded: no level lies in the middle between two.
        image = Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, (255,) * 4), layer)
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def squared(image: Image.Image, reading: Reading) -> Image.Image:
    """Make an image a square if a size is given: the only rule by which grace does so.

    ``crop`` resizes the shorter side to ``shorter`` pixels, at least ``size``, and cuts the centre,
    as torchvision's ``Resize`` and ``CenterCrop``; ``letterbox`` resizes the longer side to
    ``size``. Both are bilinear with antialiasing.

    Raises:
        GraceError: if the resized image would exceed PIL's limit for decompression bombs.
    """
    size = reading.size
    if size is None:
        return image
    if reading.fit == "letterbox":
        return letterboxed(image, size)
    shorter, (width, height) = reading.shorter or size, image.size
    if min(width, height) != shorter:
        longer = max(shorter, int(shorter * max(width, height) / min(width, height)))
        if longer * shorter > (Image.MAX_IMAGE_PIXELS or sys.maxsize):
            raise GraceError(f"{width}×{height} pixels are too long and thin to be resized")
        width, height = (shorter, longer) if width <= height else (longer, shorter)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def letterboxed(image: Image.Image, size: int) -> Image.Image:
    """Resize the longer side to ``size`` pixels, and centre the image on a grey square.

    The shorter side is resized in proportion, rounded, to one pixel at least; where its margins
    differ by a pixel, the smaller one is at the left or top.
    """
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    square = Image.new(image.mode, (size, size), GREY if image.mode == "L" else (GREY,) * 3)
    square.paste(image, ((size - width) // 2, (size - height) // 2))
    return square


def serve() -> None:
    """Decode the files that standard input names, one line of JSON each, until it ends.

    An answer is a line of JSON: the file's ``size``, ``height`` and ``width`` of the pixels that
    follow it, or ``what`` is wrong and the ``remedy``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The process that asks ends this one.
    warnings.simplefilter("ignore")
    answers = sys.stdout.buffer
    for line in sys.stdin.buffer:
        request = json.loads(line)
        path, reading = Path(request["path"]), Reading(**request["reading"])
        pixels = b""
        _bound(reading.max_pixels)
        Image.MAX_IMAGE_PIXELS = request["limit"]
        try:
            image, size = decode(path, reading)
            pixels = image.tobytes()
            facts: dict[str, Any] = {"size": size, "shape": (image.height, image.width)}
        except Exception as error:  # Damaged bytes can make decoders raise anything.
            facts = dict(zip(("what", "remedy"), reason(path, error), strict=True))
        answers.write(json.dumps(facts | {"num_bytes": len(pixels)}).encode() + b"\n" + pixels)
        answers.flush()


def _bound(max_pixels: int) -> None:
    """Limit memory and time of one file where the system can: Windows limits neither."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        # A gigabyte, more if the user allows more pixels, beside Python itself.
        most = 12 * max(max_pixels, MAX_PIXELS) + 2**28
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if sys.platform != "win32":
        # It starts anew with every file; a process that waits for one takes no time.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
