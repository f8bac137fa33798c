"""Batch norm over the whole batch when several GPUs share its rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def synchronised(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Replace every batch norm inside modules by ``nn.SyncBatchNorm`` while the context lasts.

    Both have the very same parameters and buffers, under the same names.

    Args:
        modules: in train mode, each with its batch norms inside it.
    """
    plain = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    found = [
        (parent, name, norm)
        for module in modules
        for parent in module.modules()
        for name, norm in parent.named_children()
        # Subclasses (timm's batch norm with activation) do more than normalise.
        if type(norm) in plain
    ]
    try:
        for parent, name, norm in found:
            setattr(parent, name, nn.SyncBatchNorm.convert_sync_batchnorm(norm))
        yield
    finally:
        for parent, name, norm in found:
            setattr(parent, name, norm)
