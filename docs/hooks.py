"""What MkDocs makes of the tree: pages by folder, and the reference of the public names.

In ``nav``, a value that ends with ``/*`` stands for all pages of that folder, the index first. On a
page, ``<!-- names: MODULE -->`` stands for the reference of what a module offers.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def on_config(config: Any, **_: Any) -> Any:  # noqa: ANN401 - MkDocs' own object
    """Fill in the pages of folders."""
    config["nav"] = filled(config["nav"])
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401
    """Fill in the reference."""
    return re.sub(r"<!-- names: ([\w.]+) -->", lambda match: reference(match[1]), markdown)


def filled(nav: list[Any]) -> list[Any]:
    """Return a navigation in which every ``folder/*`` is the folder's pages."""
    found: list[Any] = []
    for item in nav:
        ((title, value),) = item.items() if isinstance(item, dict) else ((None, item),)
        if isinstance(value, list):
            found.append({title: filled(value)})
        elif value.endswith("/*"):
            paths = sorted((DOCS / value[:-2]).glob("*.md"), key=lambda path: path.stem != "index")
            found.append({title: [path.relative_to(DOCS).as_posix() for path in paths]})
        else:
            found.append(item)
    return found


def reference(name: str) -> str:
    """Return a directive of mkdocstrings for each public class and function of a module."""
    module = import_module(name)
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == name]
    parts = []
    for key in getattr(module, "__all__", own):
        value = getattr(module, key)
        if callable(value) and not key.startswith("_"):
            parts.append(f"::: {value.__module__}.{value.__qualname__}")
    return "\n\n".join(parts)
