"""Copy saved weights into a module if all of them fit, else change nothing.

Tensors have any shape, the same in file and module.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from grace.base.errors import DamagedError
from grace.base.words import one_line


def load_exactly(module: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Copy saved weights and buffers into a module, which keeps its device and memory layout.

    Args:
        module: of the architecture that was saved.
        tensors: saved state by name.
        what: name of the module in errors.

    Raises:
        DamagedError: if a name, shape or type differs, or a number is not finite; the module is
            then as it was.
    """
    load_tensors(module.state_dict(), tensors, what)


@torch.no_grad()
def load_tensors(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Copy saved tensors into those of the same names; see ``load_exactly``.

    Args:
        own: tensors that are overwritten, by name.
        saved: tensors of a file, by name.
        what: name of the owner in errors.
    """
    refuse_unlike(own, saved, what)
    for name, tensor in own.items():
        tensor.copy_(saved[name])


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
