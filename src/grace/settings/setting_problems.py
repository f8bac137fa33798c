"""Describe problems of settings: path, value, range, and the nearest valid key."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from grace.base.errors import demand_of, error_of
from grace.base.words import did_you_mean, nearest

Model = type[BaseModel]

MOST_PROBLEMS = 20
"""Further problems of one file are left out: to find a similar name for each takes time."""


@final
@dataclass(frozen=True)
class WrongValue:
    """A setting with a wrong value.

    Args:
        path: dotted path of the setting.
        value: the value, shortened.
        demand: what it should be, such as "should be greater than 0".
    """

    path: str
    value: str
    demand: str

    def __str__(self) -> str:
        """Return the problem in words: "memory.size = -1 should be …"."""
        return f"{self.path} = {self.value} {self.demand}"


Problem = str | WrongValue
"""A problem of the settings."""


def problems_of(
    error: ValidationError,
    model: Model,
    prefix: str = "",
    whole: str = "experiment",
    methods: Mapping[str, Model] = MappingProxyType({}),
) -> dict[str, Problem]:
    """Turn a validation error into one problem per setting, by dotted path.

    Each member of a union reports its own problem; they are joined with "or".

    Args:
        error: pydantic's error.
        model: model of the settings that were validated.
        prefix: dotted path of the model itself; empty for a whole file.
        whole: what the whole file is called in a problem that is no single setting's.
        methods: settings models of the section "method" by name, of which hints may speak.
    """
    known = {path: [""] for path in _all_paths(model, prefix)}
    for name, own in methods.items():
        for path in _all_paths(own, "method"):
            known.setdefault(path, []).append(f"method {name}")
    by_path: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False)[: 2 * MOST_PROBLEMS]:
        by_path.setdefault(_joined(prefix, _located(model, detail["loc"])[0]), []).append(detail)
    found: dict[str, Problem] = {}
    for path, details in by_path.items():
        _, owner, field = _located(model, details[0]["loc"])
        texts = dict.fromkeys(
            demand + _range(field)
            if (demand := demand_of(detail))
            else _sentence(detail, path, owner, known)
            for detail in details
        )
        value, said = details[0]["input"], " or ".join(texts)
        if all(map(demand_of, details)):
            words = _words(field.annotation if field else None)
            said += did_you_mean(value, map(str, words)) if isinstance(value, str) else ""
            shown = repr(list(value) if isinstance(value, tuple) else value)
            shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
            found[path] = WrongValue(path, shown, f"should be {said}")
        else:
            found[path] = f"{path or whole}: {said}"
    return found


def _sentence(
    detail: ErrorDetails, path: str, owner: Model | None, known: Mapping[str, list[str]]
) -> str:
    if detail["type"] == "extra_forbidden":
        return f"no such setting{_nearest_key(path, owner, known)}"
    if detail["type"] == "missing":
        return "should be given"
    return str(error_of(detail) or detail["msg"])


def _located(model: Model, loc: Sequence[int | str]) -> tuple[str, Model | None, FieldInfo | None]:
    """Return the dotted path of an error's location, the model that has the field, and the field.

    Labels that pydantic adds for unions are left out.
    """
    path, has_entries = "", False
    field: FieldInfo | None = None
    inner: Model | None = model
    owner: Model | None = model
    for part in loc:
        if isinstance(part, int):
            path, has_entries = f"{path}[{part}]", False
        elif part == "[key]":
            continue
        elif has_entries:
            path, has_entries = _joined(path, part), False
        elif inner is not None:
            path, owner, field = _joined(path, part), inner, inner.model_fields.get(part)
            inner = next(iter(_models(field.annotation)), None) if field else None
            has_entries = field is not None and inner is not None and not _sections(field)
    return path, owner, field


def _models(annotation: object) -> list[Model]:
    """List the settings models that a value, or an entry of it, can be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _sections(field: FieldInfo) -> list[Model]:
    """List the settings models that the value itself can be."""
    return [] if get_origin(field.annotation) in (dict, tuple) else _models(field.annotation)


def _words(annotation: object) -> Iterator[object]:
    """Yield the words that a value, or an entry of a list or a mapping, can be."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _words(part)


def _joined(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


def _range(field: FieldInfo | None) -> str:
    """Describe both ends of a number's range, e.g. " (range 0 <= value <= 1)"."""
    text = "value"
    for bound in field.metadata if field else ():
        for name, sign in (("ge", "<="), ("gt", "<"), ("le", "<="), ("lt", "<")):
            limit = getattr(bound, name, None)
            if limit is not None:
                text = f"{limit} {sign} {text}" if name[0] == "g" else f"{text} {sign} {limit}"
    return f" (range {text})" if text != "value" else ""


def _nearest_key(path: str, owner: Model | None, known: Mapping[str, list[str]]) -> str:
    """Return a hint: the nearest key of the same section, else the same word in another one."""
    if path in known:
        return f"; it belongs to {' and '.join(known[path])}"
    parent, _, key = path.rpartition(".")
    neighbour = nearest(key, owner.model_fields) if owner else None
    if neighbour:
        return f"; did you mean '{_joined(parent, neighbour)}'?"
    if owner and any(other.startswith(f"{path}.") for other in known):
        # A section of other methods, such as the recipe of a phase that this one does not have.
        fields = owner.model_fields.items()
        own = [_joined(parent, name) for name, field in fields if _sections(field)]
        return f"; there is {' and '.join(own)}" if own else ""
    same = [other for other in known if other.rpartition(".")[2] == key]
    return f"; did you mean '{same[0]}'?" if same else did_you_mean(path, known)


def _all_paths(model: Model, prefix: str) -> list[str]:
    """List the dotted path of every setting, in order of appearance."""
    paths: list[str] = []
    for key, field in model.model_fields.items():
        path, inner = _joined(prefix, key), _sections(field)
        paths += [below for own in inner for below in _all_paths(own, path)] if inner else [path]
    return paths
