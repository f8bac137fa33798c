"""Batch norm that normalises by the whole batch, where several GPUs hold its rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def synchronised(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put ``nn.SyncBatchNorm`` in place of every batch norm inside modules, and those back after.

    Parameters and buffers are the very same tensors in both, and names stay.

    Args:
        modules: in train mode; none is a batch norm itself.
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
