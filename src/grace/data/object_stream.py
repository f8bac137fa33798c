"""Read the object files of the CIFAR archives without being able to run anything in them.

The archives hold Python objects in the stream format that Python's own loader executes. Here the
instructions are only looked at, one by one: lists, dictionaries, numbers, strings and uint8 arrays
are built, anything else is refused. Strings of Python 2 become ``str`` (Latin-1).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from pickletools import genops
from typing import Any, final

import numpy as np

from grace.text.refusals import GraceError


@final
@dataclass
class _Array:
    """An array whose content has not been read yet."""

    value: np.ndarray[Any, np.dtype[np.uint8]] | None = None


@final
@dataclass(frozen=True)
class _Name:
    """One of the few functions and classes a stream may mention; never imported."""

    name: str


_KNOWN = {
    "numpy.core.multiarray _reconstruct": _Name("reconstruct"),
    "numpy._core.multiarray _reconstruct": _Name("reconstruct"),
    "numpy ndarray": _Name("ndarray"),
    "numpy dtype": _Name("dtype"),
    "_codecs encode": _Name("encode"),
}
_MARK = object()
# Instructions that push their own argument: numbers, strings, bytes.
_LITERAL = re.compile(
    r"(BIN)?INT[12]?|LONG[14]?|(BIN)?FLOAT|(SHORT_)?(BIN)?STRING"
    r"|(SHORT_)?(BIN)?UNICODE8?|(SHORT_)?BINBYTES8?"
)
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def read_object_stream(path: Path) -> dict[str, Any]:
    """Read a dictionary of plain values and uint8 arrays.

    Args:
        path: a file of a CIFAR archive.

    Returns:
        Its content, with ``str`` keys.

    Raises:
        ValueError: if the file is damaged, holds anything else, or is no dictionary; it is named.
    """
    try:
        content = _Reader().read(path.read_bytes())
    except _RefusedError as error:
        raise GraceError(f"'{path}' is refused: {error}; fetch it anew") from None
    except Exception as error:
        # Whatever a damaged stream makes the interpreter below stumble over is one thing to people.
        raise GraceError(f"'{path}' is damaged ({error})", "fetch it anew") from None
    if not isinstance(content, dict):
        raise GraceError(f"'{path}' holds no dictionary: it is no file of CIFAR's")
    return {_text(key): _finished(value) for key, value in content.items()}


class _RefusedError(ValueError):
    """The stream asks for something that no CIFAR file needs."""


@final
class _Reader:
    """A stack machine for the harmless instructions of the format."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._do: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self._stack.append(_MARK),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_TUPLE": lambda _: self._stack.append(()),
            "LIST": lambda _: self._stack.append(self._to_mark()),
            "TUPLE": lambda _: self._stack.append(tuple(self._to_mark())),
            "DICT": lambda _: self._stack.append(_pairs(self._to_mark())),
            "TUPLE1": lambda _: self._stack.append(tuple(self._pop(1))),
            "TUPLE2": lambda _: self._stack.append(tuple(self._pop(2))),
            "TUPLE3": lambda _: self._stack.append(tuple(self._pop(3))),
            "APPEND": lambda _: self._extend(self._pop(1)),
            "APPENDS": lambda _: self._extend(self._to_mark()),
            "SETITEM": lambda _: self._set(self._pop(2)),
            "SETITEMS": lambda _: self._set(self._to_mark()),
            "GLOBAL": self._name,
            "STACK_GLOBAL": lambda _: self._name(" ".join(self._pop(2))),
            "REDUCE": lambda _: self._call(*self._pop(2)),
            "BUILD": lambda _: self._build(*self._pop(1)),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
        }
        for prefix in ("", "BIN", "LONG_BIN"):
            self._do[f"{prefix}PUT"] = self._remember
            self._do[f"{prefix}GET"] = lambda key: self._stack.append(self._memo[int(key)])

    def read(self, stream: bytes) -> object:
        """Carry out the stream and return the object it describes."""
        for opcode, argument, _ in genops(stream):
            if _LITERAL.fullmatch(opcode.name):
                self._stack.append(argument)
            elif opcode.name in _CONSTANTS:
                self._stack.append(_CONSTANTS[opcode.name])
            elif opcode.name in self._do:
                self._do[opcode.name](argument)
            elif opcode.name not in ("PROTO", "FRAME", "STOP"):
                raise _RefusedError(f"it contains the instruction {opcode.name}")
        (content,) = self._stack
        return content

    def _pop(self, count: int) -> list[Any]:
        taken = self._stack[-count:]
        if len(taken) < count:
            raise GraceError("an instruction lacks its operands")
        del self._stack[-count:]
        return taken

    def _to_mark(self) -> list[Any]:
        start = next(i for i in range(len(self._stack) - 1, -1, -1) if self._stack[i] is _MARK)
        taken = self._stack[start + 1 :]
        del self._stack[start:]
        return taken

    def _extend(self, values: list[Any]) -> None:
        target: list[Any] = self._stack[-1]
        target.extend(values)

    def _set(self, values: list[Any]) -> None:
        target: dict[Any, Any] = self._stack[-1]
        target.update(_pairs(values))

    def _remember(self, key: int | str) -> None:
        self._memo[int(key)] = self._stack[-1]

    def _name(self, name: str) -> None:
        if name not in _KNOWN:
            raise _RefusedError(f"it mentions '{name}', which no file of CIFAR's needs")
        self._stack.append(_KNOWN[name])

    def _call(self, function: object, arguments: tuple[Any, ...]) -> None:
        match function:
            case _Name("reconstruct"):
                self._stack.append(_Array())
            case _Name("dtype") if _text(arguments[0]) in ("u1", "|u1", "uint8"):
                self._stack.append(_Name("uint8"))
            case _Name("encode") if arguments[1] == "latin1":
                # How Python 3 writes bytes in the older protocols.
                self._stack.append(arguments[0].encode("latin1"))
            case _:
                raise _RefusedError(f"it wants to call {function} with {arguments!r:.60}")

    def _build(self, state: tuple[Any, ...]) -> None:
        target = self._stack[-1]
        if target == _Name("uint8"):
            return
        if not isinstance(target, _Array):
            raise _RefusedError("it sets the state of something that is no array")
        _, shape, dtype, is_fortran, data = state
        if dtype != _Name("uint8"):
            raise _RefusedError("it holds an array that is not uint8")
        if len(data) != prod(shape):
            raise GraceError(f"{len(data)} bytes for an array of shape {shape}")
        raw = data if isinstance(data, bytes) else data.encode("latin1")
        flat = np.frombuffer(raw, dtype=np.uint8)
        target.value = flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _finished(value: object) -> object:
    """Replace arrays that were read by their content, and bytes by text."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, list):
        return [_finished(item) for item in value]
    return _text(value) if isinstance(value, bytes) else value
