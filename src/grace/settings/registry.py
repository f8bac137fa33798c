"""The registry of methods, data sets and backbones: their code is imported only when it is used.

Other packages can add methods, see :mod:`grace.settings.outside`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, final

from pydantic import Field

from grace.base.errors import GraceError
from grace.base.words import did_you_mean
from grace.settings import methods
from grace.settings.methods import AnyMethodSettings
from grace.settings.outside import installed, load_outside

Kind = Literal["method", "dataset", "backbone"]


@final
@dataclass(frozen=True)
class Entry:
    """One registered name: a description, and the place of its code."""

    description: str
    target: str
    """``"module:Class"`` of a method, ``"module:function"`` of a data set or backbone."""


def _name(model: type[AnyMethodSettings]) -> str:
    return str(model.model_fields["name"].default)


BUILT_IN: Sequence[type[AnyMethodSettings]] = (
    methods.GraceSettings,
    methods.DERSettings,
    methods.FosterSettings,
    methods.MemoSettings,
    methods.WASettings,
    methods.ICaRLSettings,
    methods.ReplaySettings,
    methods.EWCSettings,
    methods.FinetuneSettings,
    methods.JointSettings,
    methods.DGRSettings,
    methods.BeefSettings,
    methods.TagFexSettings,
    methods.CreateSettings,
    methods.ProbeSettings,
)
"""The methods of this package, in the order of lists and figures; add new ones at the end."""

_outside = load_outside(installed(), {_name(model) for model in BUILT_IN})

METHOD_SETTINGS: Mapping[str, type[AnyMethodSettings]] = MappingProxyType(
    {_name(model): model for model in BUILT_IN} | dict(_outside.models)
)
"""The settings model of every method: those of this package, then those of others."""

METHODS: Mapping[str, Entry] = MappingProxyType(
    {name: Entry(model.summary, model.implementation) for name, model in METHOD_SETTINGS.items()}
)

REFUSED_METHODS: Mapping[str, str] = MappingProxyType(dict(_outside.refused))
"""Methods of other packages that cannot be used, with the reason."""

METHOD_NOTES: Sequence[str] = tuple(_outside.notes)
"""Problems with the methods of other packages, one line each."""

if TYPE_CHECKING:
    MethodSettings = AnyMethodSettings
else:
    MethodSettings = Annotated[Union[*METHOD_SETTINGS.values()], Field(discriminator="name")]
"""The settings of any method; their field ``name`` says which."""

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


def entries(kind: Kind) -> Mapping[str, Entry]:
    """Return the registered names of one kind."""
    return {"method": METHODS, "dataset": DATASETS, "backbone": BACKBONES}[kind]


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
    known = entries(kind)
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
    except (ImportError, AttributeError) as error:
        raise GraceError(f"{kind} '{name}' cannot be used: '{target}' fails: {error}") from error
