"""Describe problems of settings: path, value, range, and the nearest valid key."""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Union, final, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
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
    found: dict[str, list[_Cause]] = {}
    for detail in error.errors(include_url=False)[: 2 * MOST_PROBLEMS]:
        path, owner, field = locate(model, detail["loc"])
        path = _joined(prefix, path)
        found.setdefault(path, []).append(_problem(detail, path, owner, field, known))
    return {path: _joined_causes(path, problems, whole) for path, problems in found.items()}


def booleans_as_numbers(
    raw: Mapping[str, Any], model: Model, prefix: str = ""
) -> dict[str, Problem]:
    """Find booleans in place of other values; pydantic would read them as 1 and 0.

    Args:
        raw: settings as written by the user.
        model: model of the settings.
        prefix: dotted path of the model itself; empty for a whole experiment.

    Returns:
        The problems by dotted path.
    """
    found: dict[str, Problem] = {}
    for key, value in raw.items():
        field = model.model_fields.get(key)
        if field is None:
            continue
        path = _joined(prefix, key)
        inner = next(iter(models_in(field.annotation)), None)
        if isinstance(value, bool) and bool not in set(_members(field.annotation)):
            demand = f"should be a number or a word{_range(field)}"
            found[path] = WrongValue(path, repr(value), demand)
        elif isinstance(value, Mapping) and inner is not None:
            found |= booleans_as_numbers(value, inner, path)
    return found


def locate(model: Model, loc: Sequence[int | str]) -> tuple[str, Model | None, FieldInfo | None]:
    """Return the dotted path of an error's location, the model that has the field, and the field.

    Labels that pydantic adds for unions are left out.
    """
    path = ""
    owner: Model | None = model
    holder: Model | None = model
    field: FieldInfo | None = None
    entries: Model | None = None
    for part in loc:
        if part == "[key]":
            continue
        if entries is not None:
            path = f"{path}[{part}]" if isinstance(part, int) else _joined(path, part)
            owner, entries = entries, None
        elif isinstance(part, int):
            path += f"[{part}]"
        elif owner is not None:
            path, holder = _joined(path, part), owner
            field = owner.model_fields.get(part)
            owner = next(iter(models_in(field.annotation)), None) if field else None
            entries = _entries(field.annotation if field else None)
    return path, holder, field


def models_in(annotation: object) -> list[Model]:
    """List the settings models an annotation can hold."""
    return [part for part in _members(annotation) if isinstance(part, type) and _is_model(part)]


def _entries(annotation: object) -> Model | None:
    """Return the settings model of the entries of a mapping or a list; ``None``: they have none."""
    inside = get_args(annotation) if get_origin(annotation) in (dict, tuple) else ()
    found = [model for part in inside for model in models_in(part)]
    return found[0] if found else None


def _is_model(kind: type) -> bool:
    return issubclass(kind, BaseModel)


def _members(annotation: object) -> Iterator[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _members(part)
    else:
        yield annotation


def _words(annotation: object) -> Iterator[object]:
    """Yield the words that a value, or an entry of a list or a mapping, can be."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _words(part)


def _joined(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


@final
@dataclass(frozen=True)
class _Cause:
    """A problem of one setting.

    Args:
        text: a whole sentence, or what the value should be.
        value: the given value, shortened; empty if ``text`` is a whole sentence.
        hint: the value that was probably meant; may be empty.
    """

    text: str
    value: str = ""
    hint: str = ""


def _joined_causes(path: str, problems: Sequence[_Cause], whole: str) -> Problem:
    """Join the problems of one setting."""
    first = problems[0]
    texts = " or ".join(dict.fromkeys(problem.text for problem in problems))
    if not all(problem.value for problem in problems):
        return f"{path or whole}: {texts}"
    return WrongValue(path, first.value, f"should be {texts}{first.hint}")


def _problem(
    detail: ErrorDetails,
    path: str,
    owner: Model | None,
    field: FieldInfo | None,
    known: Mapping[str, list[str]],
) -> _Cause:
    if detail["type"] == "extra_forbidden":
        return _Cause(f"no such setting{_nearest_key(path, owner, known)}")
    if detail["type"] == "missing":
        return _Cause("should be given")
    demand, value = demand_of(detail), detail["input"]
    if demand is None:
        return _Cause(str(error_of(detail) or detail["msg"]))
    choices = map(str, _words(field.annotation if field else None))
    return _Cause(
        text=demand + _range(field),
        value=repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}...",
        hint=did_you_mean(value, choices) if isinstance(value, str) else "",
    )


def _range(field: FieldInfo | None) -> str:
    """Describe both ends of a number's range, e.g. " (range 0 <= value <= 1)"."""
    low = high = ""
    for bound in field.metadata if field else ():
        match bound:
            case Ge(ge=limit):
                low = f"{limit} <= "
            case Gt(gt=limit):
                low = f"{limit} < "
            case Le(le=limit):
                high = f" <= {limit}"
            case Lt(lt=limit):
                high = f" < {limit}"
    return f" (range {low}value{high})" if low or high else ""


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
        own = [_joined(parent, name) for name, field in fields if models_in(field.annotation)]
        return f"; there is {' and '.join(own)}" if own else ""
    same = [other for other in known if other.rpartition(".")[2] == key]
    return f"; did you mean '{same[0]}'?" if same else did_you_mean(path, known)


def _all_paths(model: Model, prefix: str) -> list[str]:
    """List the dotted path of every setting, in order of appearance."""
    paths: list[str] = []
    for key, field in model.model_fields.items():
        path, inner = _joined(prefix, key), models_in(field.annotation)
        paths += [below for own in inner for below in _all_paths(own, path)] if inner else [path]
    return paths
