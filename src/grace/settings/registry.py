"""The registry of methods, data sets and backbones: their code is imported only when it is used.

A method is a file: ``grace/methods/<name>.py``, or the module that another package names in the
entry points of the group ``grace.methods``. What the file says of itself is read without importing
it, and so without torch. Of its syntax tree only this runs: the imports of grace.settings,
grace.base.errors, pydantic and Python's own modules, and what its class says in ``_READ``; its
``Settings`` therefore use nothing else of the file. When the file is imported, its class takes over
the ``Settings`` that was read here (``Method.__init_subclass__``): there is one.
"""

import ast
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType
from typing import Any, Literal, NamedTuple, final

from pydantic import Field
from typing_extensions import override

from grace.base.errors import GraceError
from grace.base.words import did_you_mean, one_line, printable
from grace.settings.method import AnyMethodSettings, Traits

Kind = Literal["method", "dataset", "backbone"]

GROUP = "grace.methods"
"""The entry points in which packages name their methods: ``aligned = "package.module"``."""
_READ = ("Settings", "traits", "variants", "exceptions")
"""What is read of a method's class."""
_LIGHT = {*sys.stdlib_module_names, "annotated_types", "pydantic", "typing_extensions"}
_OWN_LIGHT = ("grace.settings.", "grace.base.errors", "grace.base.words")


class Entry(NamedTuple):
    """One registered name: a description, and the place of its code."""

    description: str
    target: str
    """``"module:function"``."""


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
    def _text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._text, self.path)

    @cached_property
    def class_name(self) -> str:
        """The name of the class that has a class ``Settings``; empty in a file of shared steps."""
        found = re.search(
            r"^class (\w+)(?:.(?!^class ))*?^    class Settings\(", self._text, re.M | re.S
        )
        return found[1] if found else ""

    @property
    def target(self) -> str:
        """The place of the method's class, ``"module:Class"``."""
        return f"{self.module}:{self.class_name}"

    @property
    def description(self) -> str:
        """The first line of the docstring without the method's name: "DER: one new …"."""
        found = re.match(r'\s*"""(?:[^:\n]*: )?([^\n"]+)', self._text)
        if found is None or not found[1].isprintable():
            raise GraceError("it needs a docstring whose first line says what it is")
        return found[1].removesuffix(".")

    @cached_property
    def docstring(self) -> str:
        """The page of the method: what it is, its algorithm, departures and source."""
        return ast.get_docstring(self._tree) or ""

    @cached_property
    def declared(self) -> Mapping[str, Any]:
        """The values of ``Settings`` and of the attributes in ``_READ``, by name."""
        body: list[ast.stmt] = [node for node in self._tree.body if _is_light_import(node)]
        for own in self._tree.body:
            if isinstance(own, ast.ClassDef) and own.name == self.class_name:
                body += [node for node in own.body if _is_declared(node)]
        for node in body:
            if isinstance(node, ast.ClassDef):
                # The field that says which method the settings are of.
                line = f"name: _Literal[{self.name!r}] = _Field({self.name!r}, description=_NAME)"
                node.body += [ast.copy_location(ast.parse(line).body[0], node)]
        loader = _Declarations(self.module, str(self.path))
        loader.tree = ast.fix_missing_locations(ast.Module(body, []))
        spec = spec_from_loader(self.module, loader)
        assert spec is not None
        module = module_from_spec(spec)
        meaning = AnyMethodSettings.model_fields["name"].description
        vars(module).update(_Literal=Literal, _Field=Field, _NAME=meaning)
        loader.exec_module(module)
        return {name: vars(module)[name] for name in _READ if name in vars(module)}

    @cached_property
    def settings(self) -> type[AnyMethodSettings]:
        """The class ``Settings``, with the traits of the method."""
        model, traits = self.declared["Settings"], self.declared.get("traits", Traits())
        if not isinstance(model, type(AnyMethodSettings)) or not isinstance(traits, Traits):
            raise GraceError("its Settings or traits are of no class of grace.settings.method")
        model.traits = traits
        model()  # Refuses settings without defaults.
        return model


def _is_declared(node: ast.stmt) -> bool:
    match node:
        case ast.ClassDef(name="Settings"):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in _READ
    return False


def _is_light_import(node: ast.stmt) -> bool:
    """Return True for an import of modules that need no torch."""
    match node:
        case ast.Import(names=aliases):
            modules = [alias.name for alias in aliases]
        case ast.ImportFrom(module=str(module), level=0):
            modules = [module]
        case _:
            return False
    return all(name.startswith(_OWN_LIGHT) or name.split(".")[0] in _LIGHT for name in modules)


def _outside(entry: EntryPoint) -> MethodFile:
    """Return the file that an entry point names, once its settings are found sound."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", entry.name):
        raise GraceError(
            "a method's name has small letters, digits, '-' and '_' only, a letter first"
        )
    # Neither the module nor a package above it is imported to find its file.
    top, *below = entry.value.split(".")
    spec = find_spec(top)
    path = Path(spec.origin or "") if spec else Path()
    path = path.parent.joinpath(*below).with_suffix(".py") if below else path
    if path.suffix != ".py" or not path.is_file():
        raise GraceError(f"'{entry.value}' is no module with a file: name the method's file")
    file = MethodFile(entry.name, entry.value, path)
    if not file.class_name:
        raise GraceError(f"'{entry.value}' has no class with a class Settings in it")
    assert file.description
    assert file.settings
    return file


def _found_methods() -> tuple[dict[str, MethodFile], dict[str, str]]:
    """Return this package's methods and those of others, and why others cannot be used."""
    files: dict[str, MethodFile] = {}
    for path in sorted((Path(__file__).parents[1] / "methods").glob("*.py")):
        file = MethodFile(path.stem, f"grace.methods.{path.stem}", path)
        if file.class_name:
            files[file.name] = file
    own, refused = set(files), dict[str, str]()
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=GROUP), key=_package):
        by_name.setdefault(entry.name, []).append(entry)
    for name, entries in sorted(by_name.items()):
        try:
            if name in own:
                raise GraceError("grace has its own")
            if len(entries) > 1:
                raise GraceError("uninstall one of them")
            files[name] = _outside(entries[0])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Another's code may end in any way.
            packages = " and ".join(f"'{_package(entry)}'" for entry in entries)
            reason = f"{type(error).__name__}: {error}"
            reason = str(error) if isinstance(error, GraceError) else reason
            refused[name] = one_line(
                f"method '{name}' of {packages} cannot be used: {' '.join(reason.split())}", 300
            )
    return files, refused


def _package(entry: EntryPoint) -> str:
    return printable(entry.dist.name[:100]) if entry.dist else "unknown package"


_files, _refused = _found_methods()

METHODS: Mapping[str, MethodFile] = _files
"""The files of all methods: those of this package by name, then those of others."""

REFUSED_METHODS: Mapping[str, str] = _refused
"""Names that other packages give to methods that cannot be used, with the reason in one line."""

DATASETS: Mapping[str, Entry] = {
    name: Entry(description, f"grace.data.{place}")
    for name, place, description in (
        ("digits", "arrays:load_digits", "scikit-learn's 1,797 grey images of 8×8 pixels, offline"),
        ("cifar10", "cifar:load_cifar", "60,000 images of 32×32 pixels in 10 classes; downloads"),
        ("cifar100", "cifar:load_cifar", "the same in 100 classes; downloads"),
        ("imagenet100", "folders:load_imagenet100", "100 classes of ImageNet, in data.root"),
        ("folder", "folders:load_folder", "your images: data.root/<class>/… or root/train|test/…"),
    )
}
"""Each is made by a function of the data settings."""

_CIFAR_RESNET = "grace.nn.resnets:build_cifar_resnet"
_TORCHVISION_RESNET = "grace.nn.resnets:build_torchvision_resnet"

BACKBONES: Mapping[str, Entry] = {
    "resnet20": Entry("for small images (CIFAR), 20 layers, 64 features", _CIFAR_RESNET),
    "resnet32": Entry("for small images (CIFAR), 32 layers, 64 features", _CIFAR_RESNET),
    "resnet44": Entry("for small images (CIFAR), 44 layers, 64 features", _CIFAR_RESNET),
    "resnet56": Entry("for small images (CIFAR), 56 layers, 64 features", _CIFAR_RESNET),
    "resnet18": Entry("for larger images, torchvision's, 512 features", _TORCHVISION_RESNET),
    "resnet34": Entry("for larger images, torchvision's, 512 features", _TORCHVISION_RESNET),
    "resnet50": Entry("for larger images, torchvision's, 2048 features", _TORCHVISION_RESNET),
    "timm/<model>": Entry("any model of timm", "grace.nn.timm_backbone:build_timm"),
}
"""Each is made by a function of backbone settings, channels, seed and purpose."""


def why_unknown(name: str) -> str:
    """Return why a name cannot be used: its method is faulty, or no installed package has it."""
    hint = did_you_mean(name, METHODS) or ": install the package that brings it"
    unknown = f"unknown method '{name[:100]}'{hint} (known: {', '.join(METHODS)})"
    return REFUSED_METHODS.get(name, unknown)


def registered(kind: Kind, name: str) -> Entry | MethodFile:
    """Return what is registered under a name; nothing is imported.

    Raises:
        GraceError: if the name is unknown; the message names the nearest known one.
    """
    all_known: Mapping[Kind, Mapping[str, Entry | MethodFile]]
    all_known = {"method": METHODS, "dataset": DATASETS, "backbone": BACKBONES}
    known = all_known[kind]
    if kind == "backbone" and name.startswith("timm/"):
        name = "timm/<model>"
    if name not in known:
        hint = f"{did_you_mean(name, known)} (known: {', '.join(known)})"
        raise GraceError(
            why_unknown(name) if kind == "method" else f"unknown {kind} '{name}'{hint}"
        )
    return known[name]


def resolve(kind: Kind, name: str) -> Any:  # noqa: ANN401 - the caller knows the type
    """Import and return the class or function registered under a name.

    Raises:
        GraceError: if the name is unknown, or its code cannot be imported.
    """
    target = registered(kind, name).target
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Another's code may end in any way.
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        raise GraceError(f"{kind} '{name}' cannot be used: '{target}' fails: {reason}") from error
