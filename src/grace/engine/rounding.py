"""All that rounding depends on: with an equal description, equal work gives equal bits.

The processor's name is not enough: it may name every processor of a maker, and libraries choose
their instructions by its flags and by variables of the environment. So a small piece of work is
done, too, and its bits are part of the description.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from grace.base.machine import processor_flags, processor_name
from grace.engine.device import Device

_VARIABLES = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_", "NVIDIA_TF32", "CUBLAS_", "TORCH_ALLOW_TF32")
"""Beginnings of the names of variables that choose instructions or number formats."""


@final
@dataclass(frozen=True)
class Rounding:
    """What decides how sums are rounded.

    Args:
        processor: name of the processor, and of the GPU if work runs there.
        instructions: those that it has (a hash of its flags), and those that torch uses.
        variables: environment variables that limit them.
        threads: torch's CPU threads.
        settings: number format, memory layout, compiler, and torch's switches.
        probe: hash of the results of a small piece of work.
    """

    processor: str
    instructions: str
    variables: str
    threads: int
    settings: str
    probe: str

    @classmethod
    def of(cls, device: Device) -> "Rounding":
        """Describe the rounding of a device in this process, now."""
        is_gpu = device.torch_device.type == "cuda"
        gpu = torch.cuda.get_device_name(device.torch_device) if is_gpu else "no GPU"
        flags = hashlib.sha256(processor_flags().encode()).hexdigest()[:16]
        limits = {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
        switches = (
            f"precision={device.precision}",
            f"channels_last={device.channels_last}",
            f"compile={device.compile}",
            f"matmul={torch.get_float32_matmul_precision()}",
            f"onednn={torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled}",
            f"tf32={torch.backends.cudnn.allow_tf32}",
            f"deterministic={torch.are_deterministic_algorithms_enabled()}",
        )
        return cls(
            processor=f"{processor_name()}, {gpu}",
            instructions=f"{flags}, {torch.backends.cpu.get_cpu_capability()}",
            variables=repr(sorted(limits.items())),
            threads=torch.get_num_threads(),
            settings=", ".join(switches),
            probe=_probe(device),
        )

    def __str__(self) -> str:
        """Return all of it in one line."""
        return "; ".join(f"{name}: {value}" for name, value in vars(self).items())


def _probe(device: Device) -> str:
    """Hash the outputs and gradients of two convolutions and a linear layer."""
    draws = torch.Generator().manual_seed(1)

    def tensor(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=draws).to(device.torch_device)
        if device.channels_last and made.ndim == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_()

    images, first, second, head = (
        tensor(8, 3, 16, 16),
        tensor(16, 3, 3, 3),
        tensor(32, 16, 3, 3),
        tensor(10, 32),
    )
    with device.autocast():
        maps = functional.conv2d(images, first, padding=1).relu()
        maps = functional.conv2d(maps, second, stride=2, padding=1).relu()
        logits = functional.linear(maps.mean(dim=(2, 3)), head)
        loss = functional.cross_entropy(logits, torch.arange(8, device=device.torch_device))
    gradients = torch.autograd.grad(loss, [first, second, head])
    digest = hashlib.sha256()
    for found in (logits, loss, *gradients):
        digest.update(found.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
