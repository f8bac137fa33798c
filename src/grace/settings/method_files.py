"""What the file of a method says of itself, read without importing the file, and so without torch.

Of the syntax tree only this runs: the imports of grace.settings, grace.base.errors, pydantic and
Python's own modules; the attributes of the class in ``DECLARED``; and its class
``Settings``, which therefore uses nothing else of the file. When the file is imported, its class
takes over the ``Settings`` that was read here (``Method.__init_subclass__``): there is one.
"""

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType
from typing import Any, Literal, final

from pydantic import ValidationError
from typing_extensions import override

from grace.base.errors import GraceError
from grace.base.words import one_line, printable
from grace.settings.method import AnyMethodSettings, Traits

GROUP = "grace.methods"
"""The entry points in which packages name their methods: ``aligned = "package.module"``."""
DECLARED = ("traits", "variants", "exceptions")
"""Attributes of a method's class that are read beside ``Settings``."""


@final
class _Declarations(SourceFileLoader):
    """Runs a part of a method's file as if it were the module."""

    tree: ast.Module

    @override
    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.tree, self.path)


@final
@dataclass(frozen=True)
class MethodFile:
    """The file of one method."""

    name: str
    module: str
    path: Path

    @cached_property
    def text(self) -> str:
        """The content of the file."""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GraceError(f"{self.path} cannot be read: {error}") from error

    @cached_property
    def _tree(self) -> ast.Module:
        try:
            return ast.parse(self.text, self.path)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise GraceError(f"{self.path} is no Python: {error}") from error

    @cached_property
    def class_name(self) -> str:
        """The name of the class that has a class ``Settings``; empty in a file of shared steps."""
        for part in self.text.split("\nclass ")[1:]:
            if "\n    class Settings(" in part:
                return re.split(r"\W", part, maxsplit=1)[0]
        return ""

    @cached_property
    def docstring(self) -> str:
        """The page of the method: what it is, departures, source."""
        return ast.get_docstring(self._tree) or ""

    @property
    def summary(self) -> str:
        """The first line of the docstring without the method's name: "DER: one new …"."""
        found = re.match(r'\s*"""(?:[^:\n]*: )?([^\n"]+)', self.text)
        if found is None or not found[1].isprintable():
            raise GraceError(f"{self.path} needs a docstring whose first line says what it is")
        return found[1].removesuffix(".")

    @property
    def target(self) -> str:
        """The place of the method's class, ``"module:Class"``."""
        return f"{self.module}:{self.class_name}"

    @cached_property
    def declared(self) -> Mapping[str, Any]:
        """The values of ``Settings`` and of the attributes in ``DECLARED``, by name."""
        own = next(
            node
            for node in self._tree.body
            if isinstance(node, ast.ClassDef) and node.name == self.class_name
        )
        body = [node for node in own.body if _is_declared(node)]
        stripped = ast.copy_location(ast.ClassDef(own.name, [], [], body, []), own)
        for node in body:
            if isinstance(node, ast.ClassDef):
                # Which method it is of.
                line = ast.parse(f"name: _Literal[{self.name!r}] = {self.name!r}").body[0]
                node.body = [*node.body, ast.copy_location(line, node)]
        imports = [node for node in self._tree.body if _is_free(node)]
        tree = ast.fix_missing_locations(ast.Module([*imports, stripped], []))
        loader = _Declarations(self.module, str(self.path))
        loader.tree = tree
        spec = spec_from_loader(self.module, loader)
        assert spec is not None
        module = module_from_spec(spec)
        vars(module)["_Literal"] = Literal
        loader.exec_module(module)
        found = vars(getattr(module, own.name))
        return {name: value for name, value in found.items() if name[0] != "_"}

    @cached_property
    def settings(self) -> type[AnyMethodSettings]:
        """The class ``Settings``, with the traits of the method.

        Raises:
            GraceError: if it is none, has no valid defaults, or its code fails.
        """
        try:
            declared = self.declared
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Another's code may end in any way.
            raise GraceError(f"{self.path}: {type(error).__name__}: {error}") from error
        model, traits = declared["Settings"], declared.get("traits", Traits())
        if not (isinstance(model, type) and issubclass(model, AnyMethodSettings)):
            raise GraceError("its Settings need a base class of grace.settings.method")
        if not isinstance(traits, Traits):
            raise GraceError("its traits are none")
        model.traits = traits
        try:
            model.model_validate({})
        except ValidationError as error:
            lacking = error.errors(include_url=False)[0]["loc"]
            raise GraceError(f"its settings need defaults that are valid: {lacking}") from error
        return model


@final
@dataclass(frozen=True)
class FoundMethods:
    """All methods of this package and of others."""

    files: dict[str, MethodFile] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Names of other packages' methods that cannot be used, with the reason."""
    notes: list[str] = field(default_factory=list)
    """Problems, one line each."""


def found_methods(entries: Iterable[EntryPoint] | None = None) -> FoundMethods:
    """List this package's methods by name, then those that the entry points name."""
    found = FoundMethods()
    for path in sorted((Path(__file__).parents[1] / "methods").glob("*.py")):
        file = MethodFile(path.stem, f"grace.methods.{path.stem}", path)
        if file.class_name:
            found.files[file.name] = file
    taken = set(found.files)
    by_name: dict[str, list[EntryPoint]] = {}
    given = entry_points(group=GROUP) if entries is None else entries
    for entry in sorted(given, key=lambda entry: (entry.name, _package(entry))):
        by_name.setdefault(entry.name, []).append(entry)
    for name, named in by_name.items():
        packages = " and ".join(f"'{_package(entry)}'" for entry in named)
        if name in taken:
            found.notes.append(f"method '{name}' of {packages} is left out: grace has its own")
            continue
        reason = ""
        if len(named) > 1:
            reason = f"{packages} both bring it: uninstall one of them"
        else:
            try:
                found.files[name] = _outside(named[0])
            except GraceError as error:
                reason = f"package {packages}: {_shown(str(error))}"
        if reason:
            found.refused[name] = reason
            found.notes.append(f"method '{_shown(name)}' cannot be used: {reason}")
    return found


def _outside(entry: EntryPoint) -> MethodFile:
    """Return the file that an entry point names, once its settings are found sound."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", entry.name):
        raise GraceError(
            "a method's name has small letters, digits, '-' and '_' only, a letter first"
        )
    path = _file_of(entry.value)
    file = MethodFile(entry.name, entry.value, path)
    if not file.class_name:
        raise GraceError(f"'{entry.value}' has no class with a class Settings in it")
    assert file.summary
    assert file.settings
    return file


def _file_of(module: str) -> Path:
    """Find the file of a module without importing it or a package above it."""
    first, *below = module.split(".")
    try:
        spec = find_spec(first)
        for name in below:
            places = spec.submodule_search_locations if spec else None
            first = f"{first}.{name}"
            spec = PathFinder.find_spec(first, places) if places is not None else None
    except (ImportError, ValueError) as error:
        raise GraceError(f"'{module}' fails: {type(error).__name__}: {error}") from error
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise GraceError(f"'{module}' is no module with a file: name the method's file")
    return Path(spec.origin)


def _is_declared(node: ast.stmt) -> bool:
    match node:
        case ast.ClassDef(name="Settings"):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in DECLARED
    return False


def _is_free(node: ast.stmt) -> bool:
    """Return True for an import of modules that need no torch."""
    match node:
        case ast.Import(names=names):
            return all(_is_light(alias.name) for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return _is_light(module)
    return False


def _is_light(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("annotated_types", "pydantic"):
        return True
    own = ("grace.settings.", "grace.base.errors", "grace.base.words")
    return top == "typing_extensions" or module.startswith(own)


def _package(entry: EntryPoint) -> str:
    return _shown(entry.dist.name) if entry.dist else "unknown package"


def _shown(text: str) -> str:
    """Shorten a text of another package to one line of printable characters."""
    return printable(one_line(" ".join(text.split()), 200))
