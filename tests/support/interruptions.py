"""Work that is interrupted, as Ctrl-C does, at a chosen call of a function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def interrupted(
    owner: Any, name: str, at: Callable[..., bool] = lambda *_, **__: True, *, after: bool = False
) -> Iterator[None]:
    """Interrupt what stands in the context; it is an error if that comes to its end.

    Args:
        owner: class or module of the function.
        name: its name.
        at: gets the arguments of a call; the first call for which it returns True is interrupted.
        after: the function does its work first.
    """
    function = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if not at(*arguments, **named):
            return function(*arguments, **named)
        if after:
            function(*arguments, **named)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        with pytest.raises(KeyboardInterrupt):
            yield


def call_number(number: int) -> Callable[..., bool]:
    """Return a condition that holds at the n-th call, from 1."""
    calls = iter(range(1, number + 1))
    return lambda *_, **__: next(calls, 0) == number
