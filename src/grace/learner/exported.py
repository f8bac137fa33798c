"""Answer from a file of ``grace export`` by onnxruntime, without torch.

The file may come from a stranger. Before onnxruntime sees it, its outline is read: it may hold
nothing but one graph of ONNX's own operators without loops, whose tensors are all inside. It runs
within limits of memory and time.

Shapes: N images, C channels, H×W pixels, K classes.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Annotated, Any, Literal, Self, final

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from grace.base import strict_json
from grace.base.errors import DamagedError, GraceError
from grace.base.files import read_head, read_small
from grace.base.machine import usable_cores
from grace.data.decoders import Pixels
from grace.data.folder_tree import class_name
from grace.learner.prediction import Answerer, Numbers

MAX_BYTES = 2**31
"""The largest file that is read: ONNX allows no larger one."""
MAX_ENTRIES = 1_000_000
"""Most entries of a file's outline."""
ROOM = 2**32
"""Bytes that running a file may take beside four times its size."""
SECONDS = 60
"""Seconds after which the answer for one batch is given up."""
BATCH = 64
"""Images that the graph gets at once: more need more memory."""

_ClassName = Annotated[str, AfterValidator(class_name)]
_Side = Annotated[int, Field(ge=1, le=1024)]


@final
class About(BaseModel):
    """What a program must know to use an exported file; saved as JSON in the file's metadata."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    class_names: Annotated[tuple[_ClassName, ...], Field(min_length=2)]
    """By output index."""
    masked_classes: tuple[int, ...]
    """Indices of forgotten classes, which are never predicted."""
    input_size: tuple[Annotated[int, Field(ge=1, le=3)], _Side, _Side]
    """(C, H, W)."""
    fit: Literal["crop", "letterbox"]
    """How a picture becomes a square; see ``grace.data.decoding``."""
    familiarities: tuple[float, ...]
    """Of the held-out images: they set the limit below which an image is unknown."""
    unknown_below: dict[str, float] = Field(default_factory=dict)
    """That limit, for each share of false alarms that so many held-out images allow."""
    method: str = ""
    model_version: int = 0
    grace_version: str = ""

    @model_validator(mode="after")
    def _has_a_class(self) -> Self:
        if not set(self.masked_classes) < set(range(len(self.class_names))):
            raise GraceError("its masked classes are not some of its classes")
        return self


def refuse_place(path: Path, *, replace: bool) -> None:
    """Refuse a file to export into that exists, or whose folder does not."""
    if path.exists() and not replace:
        raise GraceError(f"'{path}' exists already", "choose another name, or use --force")
    if not path.parent.is_dir():
        raise GraceError(f"there is no folder '{path.parent}' to export into", "create it")


def open_exported(path: Path) -> Answerer:
    """Open a file of ``grace export``; torch is not imported.

    Raises:
        DamagedError: if it is no such file, or would do more than answer.
        GraceError: if onnxruntime is missing.
    """
    what = f"'{path}'"
    if read_head(path, what, 1) != b"\x08":
        raise DamagedError(f"{what} is neither a learner nor a file of 'grace export'")
    data = read_small(path, what, MAX_BYTES, given=True)
    try:
        raw = strict_json.parse(_metadata(data), "its metadata")
    except (IndexError, KeyError):
        raise DamagedError(f"{what} is damaged, or was not written by 'grace export'") from None
    except DamagedError as error:
        raise error.found_in(what) from None
    about = strict_json.checked(About, raw, what)
    limited = partial(_limited, ROOM + 4 * len(data))
    with limited():
        session = open_session(data, what)

    def answer(pixels: Pixels) -> tuple[Numbers, Numbers]:
        images = pixels.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        batches = [images[first : first + BATCH] for first in range(0, len(images), BATCH)]
        with limited():
            parts = _answers(session, batches, what)
        probabilities, familiarity = (np.concatenate(own) for own in zip(*parts, strict=True))
        is_right = probabilities.shape == (len(pixels), len(about.class_names))
        if not (is_right and np.isfinite(probabilities).all() and np.isfinite(familiarity).all()):
            raise DamagedError(f"{what} is damaged: its answers are not numbers for its classes")
        return probabilities, familiarity

    return Answerer(
        class_names=about.class_names,
        forgotten=about.masked_classes,
        shape=about.input_size,
        fit=about.fit,
        familiarities=about.familiarities,
        answer=answer,
    )


def open_session(data: bytes, what: str) -> Any:  # noqa: ANN401 - an onnxruntime.InferenceSession
    """Let onnxruntime load a model; refuse one that it cannot load."""
    # Otherwise onnxruntime's published packages send events to their makers.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError:
        raise GraceError(
            "answering from an exported file needs onnxruntime", "pip install 'grace-cil[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    limit = os.environ.get("OMP_NUM_THREADS", "")
    options.intra_op_num_threads = int(limit) if limit.isdecimal() else usable_cores()
    try:
        return onnxruntime.InferenceSession(
            data,
            options,
            providers=["CPUExecutionProvider"],
            # It would compute what a file says before there is a limit of time.
            disabled_optimizers=["ConstantFolding"],
        )
    except Exception:  # onnxruntime has many types of errors.
        raise DamagedError(f"{what} is damaged: onnxruntime cannot load it") from None


def _answers(session: Any, batches: Sequence[Numbers], what: str) -> list[tuple[Numbers, Numbers]]:  # noqa: ANN401
    """Map batches of images (N, C, H, W) to probabilities (N, K) and familiarity (N,)."""
    import onnxruntime

    wanted = ["probabilities", "familiarity"]
    found: list[tuple[Numbers, Numbers]] = []
    for batch in batches:
        running = onnxruntime.RunOptions()
        running.log_severity_level = 4
        timer = Timer(SECONDS, setattr, (running, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            found.append(session.run(wanted, {"images": batch}, running))
        except Exception:
            raise DamagedError(
                f"{what} cannot be run on these images, or not within {SECONDS} seconds"
            ) from None
        finally:
            timer.cancel()
    return found


@contextmanager
def _limited(num_bytes: int) -> Iterator[None]:
    """Let the process take only so many bytes more, where the system can limit it."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + num_bytes
    limits = [own for own in (soft, hard, most) if own != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_PARTS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 14: "metadata"} | dict.fromkeys((1, 2, 3, 5, 8), ""),
    "graph": {1: "operator", 5: "tensor"} | dict.fromkeys((2, 11, 12, 13), ""),
    "operator": {5: "attribute", 7: "domain"} | dict.fromkeys((1, 2, 3, 4), ""),
    "attribute": {5: "tensor"} | dict.fromkeys((1, 2, 3, 4, 7, 8, 9, 20), ""),
    "tensor": dict.fromkeys((1, 2, 4, 5, 7, 8, 9, 10, 11), ""),
    "metadata": {1: "", 2: "value"},
}
"""What a part of an ONNX file may hold, by the numbers in its format, and which parts these are.

Not among them: graphs inside operators (loops and branches), functions, tensors in other files.
"""


def _metadata(data: bytes) -> bytes:
    """Return what ``grace export`` wrote; refuse a file that holds more than an exported graph."""
    found: list[bytes] = []
    parts, left = [("model", memoryview(data))], MAX_ENTRIES
    while parts:
        part, content = parts.pop()
        for number, inner in _entries(content):
            left -= 1
            kind = _PARTS[part].get(number)
            if kind is None or left < 0:
                raise DamagedError(f"its {part} has more than an exported file has ({number})")
            if kind == "domain" and bytes(inner[:8]) not in (b"", b"ai.onnx"):
                raise DamagedError("it needs operators that are not ONNX's own")
            if kind == "value":
                found.append(bytes(inner))
            elif kind in _PARTS:
                parts.append((kind, inner))
    return found[0]


def _entries(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the entries of a part of an ONNX file, in Protocol Buffers: a number and a content."""
    place = 0
    while place < len(data):
        key, place = _whole(data, place)
        if key % 8 == 2:
            length, place = _whole(data, place)
            end = place + length
        elif key % 8 == 0:
            _, end = _whole(data, place)
        else:
            end = place + {1: 8, 5: 4}[key % 8]
        if end > len(data):
            raise DamagedError("it is cut off")
        yield key // 8, data[place:end]
        place = end


def _whole(data: memoryview, place: int) -> tuple[int, int]:
    """Return a number that is written in groups of 7 bits, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + shift // 7 + 1
    raise DamagedError("it is cut off")
