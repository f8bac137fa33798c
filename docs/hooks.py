"""What MkDocs makes of the tree: pages by folder, pages of methods, tables and the reference.

In ``nav``, a value that ends with ``/*`` stands for all pages of that folder, the index first. A
method without a page of its own gets one: what its file says of it, and its settings. On a page,
``<!-- settings: NAME -->`` stands for a table, ``<!-- names: MODULE -->`` for a reference.
"""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import settings_tables  # noqa: E402 - it stands beside this file


def on_config(config: MkDocsConfig, **_: object) -> MkDocsConfig:
    """Fill in the pages of folders."""
    config["nav"] = navigation(config["nav"])
    return config


def on_files(files: Files, config: MkDocsConfig, **_: object) -> Files:
    """Add a page for each method that has none."""
    for name in settings_tables.generated():
        content = settings_tables.method_page(name)
        files.append(File.generated(config, f"methods/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in tables and references."""
    text = settings_tables.filled(markdown)
    return re.sub(r"<!-- names: ([\w.]+) -->", lambda match: reference(match[1]), text)


def navigation(nav: list[Any]) -> list[Any]:
    """Return a navigation in which every ``folder/*`` is the folder's pages."""
    found: list[Any] = []
    for item in nav:
        ((title, value),) = item.items()
        if isinstance(value, list):
            found.append({title: navigation(value)})
        elif value.endswith("/*"):
            pages = {path.stem for path in (DOCS / value[:-2]).glob("*.md")}
            pages |= set(settings_tables.generated()) if value == "methods/*" else set()
            ordered = sorted(pages, key=lambda page: (page != "index", page))
            found.append({title: [f"{value[:-2]}/{page}.md" for page in ordered]})
        else:
            found.append(item)
    return found


def reference(name: str) -> str:
    """Return a directive of mkdocstrings for each public class and function of a module."""
    module = import_module(name)
    values = [getattr(module, key) for key in module.__all__ if not key.startswith("_")]
    return "\n\n".join(f"::: {one.__module__}.{one.__qualname__}" for one in values)
