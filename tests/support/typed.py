"""Values as the types that they have: what a type checker asks for is no check of a test's own."""

from typing import TypeVar

T = TypeVar("T")


def typed(kind: type[T], value: object) -> T:
    """Return a value that must be of a kind."""
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"
    return value


def present(value: T | None) -> T:
    """Return a value that must not be ``None``."""
    assert value is not None
    return value
