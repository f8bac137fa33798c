"""Forged fields: every field that a document's model has, so that new ones are attacked, too."""

import random
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grace.learner.document import Document, parse
from support import hostile_json

Spot = tuple[hostile_json.Place, FieldInfo]


def forged(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Give one field of a sound document another value, such as one at a limit of the field."""
    spots = list(fields(parse(Document, data, "it")))
    at, field = rng.choice(spots)
    tree, _ = hostile_json.parsed(data)
    new = rng.choice(values(rng, field))
    for depth in range(1, len(at)):
        # The way to a field of something that is not there leads through an example of it.
        try:
            holder = hostile_json.find(tree, at[:depth])
        except (KeyError, IndexError):  # Fields of their default are left out.
            holder = None
        if not holder:
            example = [{}] if isinstance(at[depth], int) else {}
            tree = hostile_json.replaced(tree, at[:depth], example)
    return f"{at} becomes {new!r:.80}", hostile_json.dumps(hostile_json.replaced(tree, at, new))


def fields(model: BaseModel | type[BaseModel], at: hostile_json.Place = ()) -> Iterator[Spot]:
    """List the fields of a model and of all models inside it.

    Args:
        model: an instance, whose values are walked, too; or a class, where there is no value.
        at: the model's place in the document.
    """
    known = model if isinstance(model, type) else type(model)
    for name, field in known.model_fields.items():
        here = (*at, name)
        yield here, field
        value = None if isinstance(model, type) else getattr(model, name)
        inner = list(_models(value, here))
        if not inner:
            for own, is_many in _classes(field.annotation):
                inner.append((own, (*here, 0) if is_many else here))
        for own, place in inner:
            yield from fields(own, place)


def _models(
    value: object, at: hostile_json.Place
) -> Iterator[tuple[BaseModel, hostile_json.Place]]:
    if isinstance(value, BaseModel):
        yield value, at
    elif isinstance(value, Mapping):
        for key, own in value.items():
            yield from _models(own, (*at, str(key)))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, own in enumerate(value):
            yield from _models(own, (*at, number))


def _classes(annotation: Any, *, is_many: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    """Find the models in an annotation, and which of them stand in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, is_many
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated, tuple, list):
        for inner in typing.get_args(annotation):
            yield from _classes(inner, is_many=is_many or origin in (tuple, list))


def values(rng: random.Random, field: FieldInfo) -> list[Any]:
    """Return values that look right for a field, those beside its limits, and wrong ones."""
    found = [None, rng.choice(hostile_json.VALUES), *_plain(field.annotation)]
    for limit in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            edge = getattr(limit, name, None)
            if edge is not None:
                found += [edge, edge + 1, edge - 1]
    return found


def _plain(annotation: Any) -> list[Any]:
    """Return values of the kinds that an annotation names."""
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return list(arguments)
    if origin is tuple or origin is list:
        inner = [value for own in arguments if own is not ... for value in _plain(own)]
        return [[], inner[:3], inner[:1] * 4, inner[:1] * 10_000]
    if origin is dict:
        return [{}, {"0": 1}, {"1": 0.5}, {"9": 1}, {"x": "x"}]
    if arguments:
        return [value for own in arguments for value in _plain(own)]
    kinds: dict[Any, list[Any]] = {
        bool: [True, False],
        int: [0, 1, 2, 7, 10**9],
        float: [0.0, 0.5, 1.0, 1e-9, 99.5, 1e9, 1e300],
        str: ["", "linear", "class 1", "x" * 101, "2026-01-01", "é"],
    }
    return kinds.get(annotation, [])
