"""The settings tables and the methods' pages, made from the code when the site is built.

A page holds ``<!-- settings: NAME -->``. NAME is a group of an experiment ("data", "scenario", …),
a method ("grace", …) or "recipe". ``<!-- methods -->`` stands for the table of all methods.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grace.settings.experiment import ExperimentSettings, MeasureSettings
from grace.settings.recipe import Recipe
from grace.settings.registry import METHODS


def models() -> dict[str, tuple[str, type[BaseModel]]]:
    """Map the name in a page to the prefix of its dotted paths and its model."""
    groups = ExperimentSettings.model_fields
    found: dict[str, tuple[str, type[BaseModel]]] = {"recipe": ("method.<phase>.", Recipe)}
    for key in ("data", "scenario", "memory", "backbone", "seeds", "engine", "budget", "gate"):
        kind = groups[key].annotation
        assert isinstance(kind, type)
        found[key] = (f"{key}.", kind)
    # A method has the name of this group.
    found["measures"] = ("probe.", MeasureSettings)
    for name, method in METHODS.items():
        found[name] = ("method.", method.settings)
    return found


def table(prefix: str, model: type[BaseModel]) -> str:
    """Write one model as a Markdown table."""
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for key, field in model.model_fields.items():
        if key != "name" or prefix != "method.":
            meaning = (field.description or "").replace("<", "&lt;")
            cells = (f"`{prefix}{key}`", _default(field), _values(field), meaning)
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def filled(text: str) -> str:
    """Return a page with its tables and its list of departures.

    Raises:
        ValueError: a marker names no model or method.
    """
    known = models()

    def one(match: re.Match[str]) -> str:
        if match[2] not in known:
            raise ValueError(f"no settings are named '{match[2]}' (known: {', '.join(known)})")
        return table(*known[match[2]]) if match[1] == "settings" else departures(match[2])

    text = text.replace("<!-- methods -->", methods_table())
    return re.sub(r"<!-- (settings|departures): ([\w-]+) -->", one, text)


def methods_table() -> str:
    """Write the table of all methods, from their files."""
    rows = ["| method | keeps of old classes | in one line |", "|---|---|---|"]
    for name, method in METHODS.items():
        title = method.docstring.partition(":")[0]
        kept = {"none": "nothing"}.get(memory := method.settings.traits.memory, memory)
        rows.append(f"| [{title}]({name}.md) | {kept} | {method.description} |")
    return "\n".join(rows)


def departures(name: str) -> str:
    """Return the numbered departures of a method from its source, as its file lists them."""
    text = METHODS[name].docstring.replace("``", "`")
    found = re.search(r"^1\. .*?(?=\n\n(?!\d)|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"the file of '{name}' lists no departures")
    return found[0]


def generated() -> list[str]:
    """Return the names of the methods that have no page of their own."""
    return [
        name for name in METHODS if not (Path(__file__).parent / "methods" / f"{name}.md").exists()
    ]


def method_page(name: str) -> str:
    """Write the page of a method from its file."""
    text = METHODS[name].docstring.replace("``", "`")
    title, _, rest = text.partition("\n")
    settings = f"## Settings\n\n<!-- settings: {name} -->"
    run = f"## How to run\n\n```bash\ngrace run digits method={name}\n```"
    return f"# {title.partition(':')[0]}\n\n{title}\n{rest}\n\n{settings}\n\n{run}\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(needed)"
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Recipe):
        return _recipe(value)
    return "none" if value is None else f"`{_plain(value)}`"


def _recipe(recipe: Recipe) -> str:
    steps = "/".join(map(str, recipe.milestones))
    falls = f"×{recipe.decay:g} at {steps}" if steps else recipe.schedule
    return (
        f"{recipe.epochs} epochs, lr {recipe.lr:g}, {falls}, weight decay {recipe.weight_decay:g}, "
        f"batch {recipe.batch_size}"
    )


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(field: FieldInfo) -> str:
    bounds: Mapping[type, str] = {Ge: "≥ ", Gt: "> ", Le: "≤ ", Lt: "< "}
    limits = [
        f"{sign}{_plain(getattr(bound, kind.__name__.lower()))}"
        for kind, sign in bounds.items()
        for bound in field.metadata
        if isinstance(bound, kind)
    ]
    words = list(_words(field.annotation))
    return ", ".join(words) if words else " and ".join(limits)


def _words(annotation: object) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (f"`{choice}`" for choice in get_args(annotation))
    elif annotation is bool:
        yield from ("`true`", "`false`")
    elif get_origin(annotation) is not tuple:
        for part in get_args(annotation):
            if part is not NoneType:
                yield from _words(part)
