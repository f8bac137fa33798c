"""The graph of a phase's parts: what trains, what runs without autograd, and its tensors by name.

Shapes: B rows in a batch.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from grace.engine.phase import Mode, Part, Parts

Forward = Callable[..., Any]
"""Calls a module, given first, with its inputs."""


def frozen(modules: Sequence[nn.Module], reads: str = "images") -> dict[str, Part]:
    """Make parts that do not train of modules with one input; name them "0", "1" and so on."""
    return {f"{i}": Part(module, (reads,), trains=False) for i, module in enumerate(modules)}


def last(parts: Parts) -> list[str]:
    """Name the parts whose outputs no other part reads, in order."""
    read = {name for part in parts.values() for name in part.reads}
    return [name for name in parts if name not in read]


def depending(parts: Parts, name: str) -> set[str]:
    """Name a part and all parts whose inputs depend on its output."""
    found = {name}
    for later, part in parts.items():
        if not found.isdisjoint(part.reads):
            found.add(later)
    return found


def without_autograd(parts: Parts, rows: Collection[str] = ()) -> set[str]:
    """Name the parts that need no autograd: nothing trains in them or before them.

    Args:
        parts: each reads the images, parts before it, or rows.
        rows: names of what is known beforehand.
    """
    off: set[str] = set()
    given = {"images", *rows}
    for name, part in parts.items():
        assert all(read in given or read in parts for read in part.reads), part.reads
        if not part.trains and all(read in given or read in off for read in part.reads):
            off.add(name)
    return off


def run(
    parts: Parts,
    modules: Mapping[str, nn.Module],
    images: Tensor,
    forward: Forward | None = None,
    outputs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run parts in their order on images (B, C, H, W).

    Args:
        parts: each reads the images, parts before it, or given outputs.
        modules: the module to run for each part, by name.
        images: augmented and normalised, (B, C, H, W).
        forward: called with a module and its inputs; ``None``: the module is called.
        outputs: of parts that were run before, by name.

    Returns:
        The outputs of all parts by name, the given ones included.
    """
    found: dict[str, Any] = {} if outputs is None else outputs
    for name, part in parts.items():
        inputs = [images if read == "images" else found[read] for read in part.reads]
        module = modules[name]
        found[name] = forward(module, *inputs) if forward else module(*inputs)
    return found


def changing(parts: Parts) -> list[nn.Module]:
    """List the modules that training may change."""
    return [part.module for part in parts.values() if part.changes]


def named_parameters(parts: Parts) -> dict[str, nn.Parameter]:
    """Name the parameters that train: ``backbone.0.stem.0.weight``, ``head.bias``."""
    named = [
        (f"{place}.{name}", parameter)
        for place, part in parts.items()
        for name, parameter in part.trained().items()
    ]
    assert len(dict(named)) == len(named), "two parts give parameters the same name"
    return dict(named)


def named_state(parts: Parts) -> dict[str, Tensor]:
    """Name the parameters and buffers that training may change, the modules' own, of any shape."""
    found: dict[str, Tensor] = {}
    for place, part in parts.items():
        own = part.module.state_dict() if part.changes else {}
        fixed = dict(part.module.named_parameters()).keys() - part.trained().keys()
        found |= {f"{place}.{name}": value for name, value in own.items() if name not in fixed}
    return found


def named_buffers(parts: Parts) -> dict[str, Tensor]:
    """Name the buffers that training may change, the modules' own, of any shape."""
    fixed = named_parameters(parts)
    return {name: value for name, value in named_state(parts).items() if name not in fixed}


@contextmanager
def only_training(parts: Parts) -> Iterator[None]:
    """Let the parts train while the context lasts; leave them in eval mode without gradients.

    Everything else has no gradients, even where autograd passes through it. The gradients are
    deleted in the end: they would double the memory of a backbone.
    """
    modules = changing(parts)
    try:
        for part in parts.values():
            part.module.eval().requires_grad_(False)
        for part in parts.values():
            if part.changes:
                part.module.train(part.is_training)
            for parameter in part.trained().values():
                parameter.requires_grad_(True)
        yield
    finally:
        for module in modules:
            module.eval().requires_grad_(False)
            module.zero_grad(set_to_none=True)


@contextmanager
def in_mode(module: nn.Module, mode: Mode | None) -> Iterator[None]:
    """Put a module into a mode while the context lasts; ``None`` changes nothing."""
    before = [] if mode is None else [(part, part.training) for part in module.modules()]
    if mode is not None:
        module.train(mode == "train")
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training
