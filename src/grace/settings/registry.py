"""The registry of methods, data sets and backbones: their code is imported only when it is used.

A method is a file: ``grace/methods/<name>.py``, or the module that another package names in the
entry points of the group ``grace.methods``. Its first line, its class's ``traits`` and its class
``Settings`` are read from the text of the file (``method_files``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, final

from typing_extensions import override

from grace.base.errors import GraceError
from grace.base.words import did_you_mean, one_line
from grace.settings.method import AnyMethodSettings
from grace.settings.method_files import MethodFile, found_methods

Kind = Literal["method", "dataset", "backbone"]


@final
@dataclass(frozen=True)
class Entry:
    """One registered name: a description, and the place of its code."""

    description: str
    target: str
    """``"module:Class"`` of a method, ``"module:function"`` of a data set or backbone."""


_found = found_methods()

METHOD_FILES: Mapping[str, MethodFile] = MappingProxyType(dict(_found.files))
"""The files of all methods: those of this package by name, then those of others."""

METHODS: Mapping[str, Entry] = MappingProxyType(
    {name: Entry(file.summary, file.target) for name, file in METHOD_FILES.items()}
)

METHOD_NOTES = tuple(_found.notes)
"""Problems with the methods of other packages, one line each."""

REFUSED_METHODS: Mapping[str, str] = MappingProxyType(dict(_found.refused))
"""Methods of other packages that cannot be used, with the reason."""


@final
class _Models(Mapping[str, type[AnyMethodSettings]]):
    """Maps a method's name to its class ``Settings``, which is read when it is asked for."""

    @override
    def __getitem__(self, name: str) -> type[AnyMethodSettings]:
        return METHOD_FILES[name].settings

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(METHOD_FILES)

    @override
    def __len__(self) -> int:
        return len(METHOD_FILES)


METHOD_SETTINGS: Mapping[str, type[AnyMethodSettings]] = _Models()
"""The settings model of every method."""

DATASETS: Mapping[str, Entry] = MappingProxyType(
    {
        "digits": Entry(
            "scikit-learn's digits: 1,797 grey images of 8×8 pixels, offline",
            "grace.data.arrays:load_digits",
        ),
        "cifar10": Entry(
            "60,000 colour images of 32×32 pixels in 10 classes; downloads",
            "grace.data.cifar:load_cifar10",
        ),
        "cifar100": Entry(
            "60,000 colour images of 32×32 pixels in 100 classes; downloads",
            "grace.data.cifar:load_cifar100",
        ),
        "imagenet100": Entry(
            "100 classes of an ImageNet folder (data.root, data.class_list)",
            "grace.data.folders:load_imagenet100",
        ),
        "folder": Entry(
            "a folder of images (data.root): root/<class>/… or root/train|test/…",
            "grace.data.folders:load_folder",
        ),
    }
)
"""Each is made by a function of the data settings."""

_CIFAR_RESNET = "grace.nn.resnets:build_cifar_resnet"
_TORCHVISION_RESNET = "grace.nn.resnets:build_torchvision_resnet"

BACKBONES: Mapping[str, Entry] = MappingProxyType(
    {
        "resnet20": Entry("for small images (CIFAR), 20 layers, 64 features", _CIFAR_RESNET),
        "resnet32": Entry("for small images (CIFAR), 32 layers, 64 features", _CIFAR_RESNET),
        "resnet44": Entry("for small images (CIFAR), 44 layers, 64 features", _CIFAR_RESNET),
        "resnet56": Entry("for small images (CIFAR), 56 layers, 64 features", _CIFAR_RESNET),
        "resnet18": Entry("for larger images, torchvision's, 512 features", _TORCHVISION_RESNET),
        "resnet34": Entry("for larger images, torchvision's, 512 features", _TORCHVISION_RESNET),
        "resnet50": Entry("for larger images, torchvision's, 2048 features", _TORCHVISION_RESNET),
        "timm/<model>": Entry("any model of timm", "grace.nn.timm_backbone:build_timm"),
    }
)
"""Each is made by a function of backbone settings, channels, seed and purpose."""


def why_unknown(name: str) -> str:
    """Return why a name cannot be used: its method is faulty, or no installed package has it."""
    if name in REFUSED_METHODS:
        return f"method '{name}' cannot be used: {REFUSED_METHODS[name]}"
    hint = did_you_mean(name, METHODS) or ": install the package that brings it"
    return f"unknown method '{name[:100]}'{hint} (known: {', '.join(METHODS)})"


def resolve(kind: Kind, name: str) -> Any:  # noqa: ANN401 - the caller knows the type
    """Import and return the class or function registered under a name.

    Raises:
        GraceError: if the name is unknown (the message names the nearest known one), or its code
            cannot be imported.
    """
    known = {"method": METHODS, "dataset": DATASETS, "backbone": BACKBONES}[kind]
    if kind == "backbone" and name.startswith("timm/"):
        name = "timm/<model>"
    if kind == "method" and name not in known:
        raise GraceError(why_unknown(name))
    if name not in known:
        raise GraceError(
            f"unknown {kind} '{name}'{did_you_mean(name, known)} (known: {', '.join(known)})"
        )
    target = known[name].target
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Another's code may end in any way.
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        raise GraceError(f"{kind} '{name}' cannot be used: '{target}' fails: {reason}") from error
