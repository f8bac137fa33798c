"""All that rounding depends on: with an equal description, equal work gives equal bits.

The processor's name is not enough: it may name every processor of a maker, and libraries choose
their instructions by its flags and by variables of the environment. So a small piece of work is
done, too, and its bits are part of the description.
"""

import hashlib
import os

import torch
from torch import Tensor
from torch.nn import functional

from grace.base.machine import processor_flags, processor_name
from grace.engine.device import Device

_VARIABLES = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_", "NVIDIA_TF32", "CUBLAS_", "TORCH_ALLOW_TF32")
"""Beginnings of the names of variables that choose instructions or number formats."""


def describe(device: Device) -> str:
    """Say in one line what decides how sums are rounded on a device in this process, now.

    That is the processor, and the GPU if work runs there; its instructions, those that torch uses
    and the variables that limit them; torch's threads; number format, memory layout, compiler and
    torch's switches; and a hash of the results of a small piece of work.
    """
    is_gpu = device.torch_device.type == "cuda"
    gpu = torch.cuda.get_device_name(device.torch_device) if is_gpu else "no GPU"
    flags = hashlib.sha256(processor_flags().encode()).hexdigest()[:16]
    limits = {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
    facts = {
        "processor": f"{processor_name()}, {gpu}",
        "instructions": f"{flags}, {torch.backends.cpu.get_cpu_capability()}",
        "variables": sorted(limits.items()),
        "threads": torch.get_num_threads(),
        "precision": device.precision,
        "channels_last": device.channels_last,
        "compile": device.compile,
        "matmul": torch.get_float32_matmul_precision(),
        "onednn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "probe": _probe(device),
    }
    return "; ".join(f"{name}: {value}" for name, value in facts.items())


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
