"""The first look at a stranger's image file, in a process of its own that has little of everything.

Whatever a file does to a decoder, it takes at most a few seconds and about a gigabyte of a process
that holds nothing, and ends in one line. A decoder reads many files, a thumbnail in a fraction of a
millisecond. Imports no torch.

Shapes: C channels, H×W pixels.
"""

import atexit
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, final

import numpy as np
from PIL import Image, ImageOps

from grace.base.errors import GraceError
from grace.base.machine import memory_bytes, usable_cores
from grace.base.words import printable
from grace.data.decoding import SECONDS, Reading, flattened, squared

MOST_ENDED = 20
"""Files of a folder that may end a decoder; each takes seconds."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class CostlyImageError(GraceError):
    """Decoding a file took too long, or ended the process that did it."""


@final
class _Decoder:
    """A process that decodes the files it is told, one after another; it ends with this one."""

    def __init__(self) -> None:
        # Modules come from where this process has them, never from the working directory.
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from grace.data.decoding import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytearray]:
        """Return the answer to one request: its facts, and pixels if they name a shape."""
        requests, answers = cast("Any", self._process.stdin), cast("Any", self._process.stdout)
        with suppress(BrokenPipeError):
            requests.write(json.dumps(request).encode() + b"\n")
            requests.flush()
            line = answers.readline()
            if line.endswith(b"\n"):
                facts = json.loads(line)
                pixels = bytearray(facts.get("num_bytes", 0))
                # A buffered reader fills all of it, unless the process has ended.
                if answers.readinto(pixels) == len(pixels):
                    return facts, pixels
        code = self._process.wait()
        what = f"decoding it ends the decoder (code {code})"
        if code in {-getattr(signal, name, 0) for name in ("SIGPROF", "SIGALRM")}:
            what = f"decoding it takes more than {SECONDS} seconds"
        raise CostlyImageError(what, "remove it")

    def end(self) -> None:
        """End the process, wait for it and close its pipes."""
        with suppress(OSError), self._process:
            self._process.kill()


@final
class _Decoders:
    """The decoders of this process: as many as it has threads to ask them, within bounds."""

    def __init__(self) -> None:
        # Each may take a gigabyte.
        gigabytes = (memory_bytes() or 2**33) >> 30
        self.most = max(1, min(4, usable_cores(), gigabytes // 4))
        self._free = threading.BoundedSemaphore(self.most)
        self._idle: list[_Decoder] = []

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytearray]:
        with self._free:
            decoder = self._idle.pop() if self._idle else _Decoder()
            try:
                answer = decoder.ask(request)
            except BaseException:  # Also an interruption: what comes next would answer this.
                decoder.end()
                raise
            self._idle.append(decoder)
            return answer

    def end(self) -> None:
        while self._idle:
            self._idle.pop().end()


@cache
def _decoders() -> _Decoders:
    return _Decoders()


def end_decoders() -> None:
    """End the decoders that wait for the next file; they hold some 25 MB each."""
    _decoders().end()


_decoders()  # Threads that ask at the same time would each make their own.
atexit.register(end_decoders)
# A process that is forked from this one has decoders of its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_decoders.cache_clear)


@final
@dataclass(frozen=True, kw_only=True)
class Look:
    """The properties of a readable image file."""

    size: tuple[int, int]
    """Width and height in pixels after the camera's orientation is applied."""
    key: Hashable
    """Equal for equal images: the key of ``selection.pixel_keys`` for a decoded image, with the
    original size if the image is not resized."""


def read_pixels(path: Path, reading: Reading) -> Pixels:
    """Read a stranger's image file as pixels (H, W, C), in a process of its own.

    Raises:
        GraceError: if the file is missing, no regular file, empty, truncated, damaged, or takes too
            many pixels, too much memory or time; it names the file.
    """
    return _read(path, reading)[0]


def _read(path: Path, reading: Reading) -> tuple[Pixels, tuple[int, int]]:
    """Return the pixels, and the file's own width and height."""
    request = {
        # The decoder has started elsewhere, if this program has changed its directory.
        "path": str(Path.cwd() / path),
        "reading": asdict(reading),
        "limit": Image.MAX_IMAGE_PIXELS,
    }
    try:
        facts, pixels = _decoders().ask(request)
        if "what" in facts:
            raise GraceError(facts["what"], facts["remedy"])
    except GraceError as error:
        raise error.found_in(f"cannot read image '{path}'") from None
    width, height = facts["size"]
    levels = np.frombuffer(pixels, dtype=np.uint8).reshape(*facts["shape"], reading.channels)
    return levels, (width, height)


def look_at_all(
    paths: Sequence[Path], reading: Reading
) -> Iterator[tuple[Look, Pixels] | GraceError]:
    """Decode the image files of a folder, several at once, in their order.

    Yields:
        For each file its properties and pixels (C, H, W), or the error if it cannot be read.

    Raises:
        GraceError: if more than ``MOST_ENDED`` files take too much time or end their decoder.
    """

    def look(path: Path) -> tuple[Look, Pixels] | GraceError:
        try:
            pixels, size = _read(path, reading)
        except GraceError as error:
            return error
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        key = hashlib.sha256(pixels.data).digest()
        return Look(size=size, key=key if reading.size else (key, size)), pixels

    num_ended = 0
    # Images that are kept whole would take much memory while they wait.
    most = 8 if reading.size is None else 256
    with ThreadPoolExecutor(_decoders().most) as pool:
        for start in range(0, len(paths), most):
            group = paths[start : start + most]
            for path, found in zip(group, pool.map(look, group), strict=True):
                num_ended += isinstance(found, CostlyImageError)
                if num_ended > MOST_ENDED:
                    what = f"more than {MOST_ENDED} images of its folder take too much, such as"
                    raise GraceError(f"{what} '{printable(str(path))}'", "remove them")
                yield found


def pixels_of(image: Image.Image, reading: Reading) -> Pixels:
    """Return the pixels of an image of a Python program as ``read_pixels`` does those of a file."""
    upright = flattened(ImageOps.exif_transpose(image), reading.channels)
    return as_array(squared(upright, reading), reading.channels)


def as_array(image: Image.Image, channels: Literal[1, 3]) -> Pixels:
    """Return an image's pixels, (H, W, channels) uint8."""
    return np.array(image, dtype=np.uint8).reshape(image.height, image.width, channels)
