"""Names of methods and data sources → paths of their classes, imported only when used.

The registry of methods is open: other packages add to it, see :mod:`grace.configs.outside`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, final

from pydantic import Field

from grace.configs import methods
from grace.configs.methods import AnyMethodSettings
from grace.configs.outside import installed, load_outside
from grace.text.nearest import did_you_mean
from grace.text.refusals import GraceError

Kind = Literal["method", "dataset"]


@final
@dataclass(frozen=True)
class Entry:
    """One registered name: a line for people and, where a class stands behind it, its place."""

    description: str
    target: str | None = None
    """``"module:Class"``; none where the room that uses the name dispatches on it itself."""


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
)
"""The methods of this package, in the order of lists and figures; put new ones at the end."""

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
        "digits": Entry("scikit-learn's digits: 1,797 grey images of 8×8 pixels, offline"),
        "cifar10": Entry("60,000 colour images of 32×32 pixels in 10 classes; downloads"),
        "cifar100": Entry("60,000 colour images of 32×32 pixels in 100 classes; downloads"),
        "imagenet100": Entry("100 classes of an ImageNet folder (data.root, data.class_list)"),
        "folder": Entry("a folder of images (data.root): root/<class>/… or root/train|test/…"),
    }
)


def entries(kind: Kind) -> Mapping[str, Entry]:
    """Return the registered names of one kind."""
    return METHODS if kind == "method" else DATASETS


def why_unknown(name: str) -> str:
    """Return why no method has this name: it cannot be used, or no installed package has it."""
    if name in REFUSED_METHODS:
        return f"method '{name}' cannot be used: {REFUSED_METHODS[name]}"
    hint = did_you_mean(name, METHODS) or ": install the package that brings it"
    return f"unknown method '{name[:100]}'{hint} (known: {', '.join(METHODS)})"


def resolve(kind: Kind, name: str) -> Any:  # noqa: ANN401 - the class is known to its caller
    """Import and return the class registered under a name.

    Raises:
        GraceError: the name is unknown, and the nearest known one is named; or its class cannot be
            imported.
    """
    known = entries(kind)
    if kind == "method" and name not in known:
        raise GraceError(why_unknown(name))
    if name not in known:
        raise GraceError(
            f"unknown {kind} '{name}'{did_you_mean(name, known)} (known: {', '.join(known)})"
        )
    target = known[name].target
    assert target is not None, f"no class is registered for {kind} '{name}'"
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise GraceError(f"{kind} '{name}' cannot be used: '{target}' fails: {error}") from error
