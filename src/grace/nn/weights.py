"""Build the backbone that the settings name, and copy weights from files or saved learners into it.

Shapes: c output channels and k×k pixels of a convolution. Saved tensors have any shape, the same in
file and module.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from grace.base.errors import DamagedError, GraceError
from grace.base.files import given_path, read_exactly
from grace.base.machine import refuse_too_large
from grace.base.tensors import decode, encode, outline
from grace.base.words import one_line
from grace.nn.backbone import Backbone
from grace.nn.resnets import TorchvisionResNet
from grace.nn.timm_backbone import TimmBackbone, pretrained_state
from grace.settings.experiment import BackboneSettings
from grace.settings.problems import refuse_missing_weights
from grace.settings.registry import resolve


def refuse_unlike(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Refuse saved tensors that do not fit ``own``.

    Args:
        own: tensors by name, of any device; meta tensors need no memory.
        saved: tensors of a file, by name; meta tensors have no numbers to check.
        what: name of the owner in errors.

    Raises:
        DamagedError: if a name, shape or type differs, or a number is not finite.
    """
    for name in sorted(own.keys() ^ saved.keys()):
        raise DamagedError(
            f"the saved {what} {'lacks' if name in own else 'has an unknown'} tensor "
            f"'{one_line(name, 80)}': it belongs to another network or was changed"
        )
    for name, tensor in own.items():
        found = saved[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise DamagedError(
                f"tensor '{name}' of the saved {what} is {found.dtype} {tuple(found.shape)}, not "
                f"{tensor.dtype} {tuple(tensor.shape)}: it belongs to another network"
            )
        if found.is_meta:
            continue
        if found.is_floating_point() and not bool(found.isfinite().all()):
            raise DamagedError(f"tensor '{name}' of the saved {what} holds numbers not finite")


_COUNTER = "num_batches_tracked"
"""The last part of the name of batch norm's step counter, which no output depends on."""
_CLASSIFIERS = ("head", "fc", "classifier")


@torch.no_grad()
def load_weights(backbone: Backbone, settings: BackboneSettings) -> None:
    """Copy the weights that ``settings.weights`` names into a backbone.

    Names may start with ``body.`` or not. A classifier is left out, and batch norm's counters of
    steps may be absent; every other name and shape must be there. If the images are grey and the
    weights are for colour, the first convolution is summed over its three channels,
    ``W'[c, 0] = Σ_i W[c, i]``: a grey image then gives the output of its copy in three channels.

    Args:
        backbone: on the CPU, of the architecture that the weights are for.
        settings: with ``weights`` other than ``none``.

    Raises:
        GraceError: if the weights cannot be read, or are not those of this backbone; it states the
            first name or shape that is wrong.
    """
    own = _own_state(backbone)
    found = {name: t for name, t in named_weights(backbone, settings).items() if name in own}
    for name, tensor in own.items():
        if name in found:
            tensor.copy_(_fitted(found[name], tensor, name, backbone))


def named_weights(backbone: Backbone, settings: BackboneSettings) -> dict[str, Tensor]:
    """Read the weights, of any shape, under the backbone's names without ``body.``.

    Raises:
        GraceError: if they cannot be read, or a name is missing or unknown.
    """
    own = _own_state(backbone)
    read = _read(settings)
    if not read.keys() & own.keys():
        read = {name.removeprefix("body."): tensor for name, tensor in read.items()}
    classifiers = _CLASSIFIERS
    if isinstance(backbone, TimmBackbone):
        classifiers += backbone.classifiers
    starts = tuple(f"{name}." for name in classifiers)
    found = {name: t for name, t in read.items() if name in own or not name.startswith(starts)}
    what = _named(settings)
    for name in own:
        if name not in found and not name.endswith(_COUNTER):
            raise GraceError(f"{what} lack tensor '{name}': {_another(backbone)}")
    for name in sorted(found.keys() - own.keys()):
        said = one_line(name, 80)
        raise GraceError(f"{what} have an unknown tensor '{said}': {_another(backbone)}")
    return found


def _own_state(backbone: Backbone) -> dict[str, Tensor]:
    return {name.removeprefix("body."): t for name, t in backbone.state_dict().items()}


def _named(settings: BackboneSettings) -> str:
    if settings.weights == "timm":
        return f"timm's weights of '{settings.name}'"
    return f"the weights of '{one_line(settings.weights, 200)}'"


def _another(backbone: Backbone) -> str:
    return f"they are not those of backbone.name={backbone.name}, set the one that they are for"


def _fitted(given: Tensor, own: Tensor, name: str, backbone: Backbone) -> Tensor:
    """Return a tensor in the shape that the backbone needs, or refuse it."""
    is_first = name == _first_convolution(backbone)
    if is_first and own.shape[1] == 1 and given.ndim == 4 and given.shape[1] == 3:
        given = given.sum(dim=1, keepdim=True)
    if given.shape != own.shape:
        fault = f"tensor '{name}' of the weights is {tuple(given.shape)}, not {tuple(own.shape)}"
        raise GraceError(f"{fault}: {_remedy(given, own, backbone, is_first=is_first)}")
    if given.is_floating_point() != own.is_floating_point():
        fault = f"tensor '{name}' of the weights is {given.dtype}, not {own.dtype}"
        raise GraceError(f"{fault}: {_another(backbone)}")
    if given.is_floating_point() and not bool(given.to(own.dtype).isfinite().all()):
        raise GraceError(f"tensor '{name}' of the weights holds numbers not finite")
    return given


def _first_convolution(backbone: Backbone) -> str:
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Conv2d):
            return f"{name}.weight".removeprefix("body.")
    return ""


def _remedy(given: Tensor, own: Tensor, backbone: Backbone, *, is_first: bool) -> str:
    if is_first and given.ndim == own.ndim:
        if given.shape[1] != own.shape[1] and given.shape[1] in (1, 3):
            return f"set data.channels={given.shape[1]}"
        if isinstance(backbone, TorchvisionResNet) and given.shape[2:] in ((7, 7), (3, 3)):
            stems = "conv7" if given.shape[2] == 7 else "conv3 or backbone.stem=cifar"
            return f"set backbone.stem={stems}"
    return _another(backbone)


def _read(settings: BackboneSettings) -> Mapping[str, Tensor]:
    """Read the weights once per process, however many backbones start from them."""
    assert settings.weights != "none"
    if settings.weights == "timm":
        return _read_timm(settings.name)
    # The user named it, so that it may be a link, as all files in the cache of a hub are.
    what = f"weights file '{settings.weights}'"
    refuse_missing_weights(settings)
    try:
        path = given_path(settings.weights).resolve()
        status = path.stat()
        return _read_file(path, what, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise GraceError(one_line(f"{what} cannot be read: {error.strerror}")) from error


@lru_cache(maxsize=1)
def _read_file(path: Path, what: str, num_bytes: int, _changed: int) -> Mapping[str, Tensor]:
    # The file and what is made of it are in memory together.
    refuse_too_large(2 * num_bytes, what)
    # The header first: a hole of gigabytes has none, and is not read.
    outline(partial(read_exactly, path, what, num_bytes), num_bytes, what)
    return decode(read_exactly(path, what, num_bytes), what)[0]


@lru_cache(maxsize=1)
def _read_timm(name: str) -> Mapping[str, Tensor]:
    return pretrained_state(name.removeprefix("timm/"))


def build_backbone(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    """Build a backbone on the CPU, freshly initialised or with given weights.

    Args:
        settings: name, stem and weights. Pass ``without_weights(settings)`` to read no file, if
            all numbers are overwritten or only shapes matter.
        num_channels: channels C of the images.
        seed: seed of the initialisation; without effect if weights are given.
        purpose: words and counters that seed this draw too, e.g. ``"backbone", task``.

    Returns:
        A backbone in train mode; equal arguments give equal weights.

    Raises:
        GraceError: if no backbone has that name, its library is not installed, or its weights
            cannot be read or are another model's.
    """
    backbone = _freshly_drawn(settings, num_channels, seed, *purpose)
    if settings.weights != "none":
        load_weights(backbone, settings)
    return backbone


def without_weights(settings: BackboneSettings) -> BackboneSettings:
    """Return the settings of the same backbone, freshly initialised."""
    return settings.model_copy(update={"weights": "none"})


def digest_of_weights(settings: BackboneSettings) -> str:
    """Compute the SHA-256 of the weights that a backbone of these settings would start from.

    It covers names, types, shapes and numbers, not the path. Classifier and counters of steps are
    not used and left out.

    Args:
        settings: with ``weights`` other than ``none``.

    Raises:
        GraceError: as ``build_backbone``.
    """
    # Only the names are needed, which do not depend on the number of channels.
    with torch.device("meta"):
        sketch = _freshly_drawn(without_weights(settings), 3, 0, "sketch")
    found = named_weights(sketch, settings)
    digest = hashlib.sha256()
    for name in sorted(found):
        if not name.endswith(_COUNTER):
            digest.update(encode({name: found[name]}))
    return digest.hexdigest()


def _freshly_drawn(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    build = resolve("backbone", settings.name)
    return cast("Backbone", build(settings, num_channels, seed, *purpose))
