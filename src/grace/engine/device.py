"""The device, number format and memory layout of all computations."""

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar, final

import torch
from torch import nn

from grace.base.errors import GraceError, GraceWarning
from grace.base.machine import computes_in_bfloat16, processor_name
from grace.base.words import in_one_line
from grace.settings.experiment import EngineSettings
from grace.settings.recipe import Recipe

AnyModule = TypeVar("AnyModule", bound=nn.Module)

MOST_THREADS = 1024
"""Largest number of CPU threads that may be asked for."""


@final
@dataclass(frozen=True)
class Device:
    """A torch device with its memory layout, precision and the choice to compile."""

    torch_device: torch.device
    precision: torch.dtype
    channels_last: bool
    compile: bool | str

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "Device":
        """Choose the device.

        Raises:
            GraceError: if CUDA is asked for and absent, or float16 is asked for on the CPU.
        """
        name = device_name(settings)
        if name == "cpu" and settings.precision == "float16":
            raise GraceError(
                "engine.precision: float16 needs a CUDA device; use float32 or bfloat16 on the CPU"
            )
        if settings.threads is not None:
            # Each is a thread of the system, and torch ends the process if it cannot make one.
            if settings.threads > MOST_THREADS:
                raise GraceError(
                    f"engine.threads: {settings.threads} is above {MOST_THREADS}",
                    f"this machine has {os.cpu_count() or 1} cores: set it to that or less",
                )
            torch.set_num_threads(settings.threads)
        precision: torch.dtype = getattr(torch, chosen_precision(settings))
        return cls(torch.device(name), precision, settings.channels_last, settings.compile)

    def place(self, module: AnyModule) -> AnyModule:
        """Move a module to the device and memory layout, in place; return it."""
        module.to(self.torch_device)
        if self.channels_last:
            module.to(memory_format=torch.channels_last)
        return module

    @property
    def description(self) -> str:
        """Describe it for people: what computes, and the settings that change last digits."""
        is_gpu = self.torch_device.type == "cuda"
        parts = (
            torch.cuda.get_device_name(self.torch_device) if is_gpu else processor_name(),
            f"{torch.get_num_threads()} threads",
            f"channels_last={self.channels_last}",
            f"compile={self.compile}",
            str(self.precision),
        )
        return ", ".join(parts)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes and losses run."""
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.torch_device.type, dtype=self.precision)

    def compiles(self, recipe: Recipe, num_images: int, shape: tuple[int, int, int]) -> bool:
        """Return True if a phase is compiled; never where there is no working compiler.

        ``auto`` compiles phases that may repay the 20 to 60 seconds of a compilation. A rule on
        sizes, not on measured seconds, so that equal runs stay bit-identical: the pixels that pass
        through the network decide. At the least number, ResNet-20 and ResNet-32 train for 18
        minutes on one core (AMD EPYC, float32), of which compiling gains up to 3. Images below 16
        pixels gain nothing.

        Args:
            recipe: its epochs count.
            num_images: images of the phase.
            shape: (C, H, W) of an image.
        """
        _, height, width = shape
        is_long = min(height, width) >= 16 and recipe.epochs * num_images * height * width >= 2e8
        wanted = is_long if self.compile == "auto" else self.compile is True
        return wanted and can_compile(self.torch_device.type)


def device_name(settings: EngineSettings) -> Literal["cpu", "cuda"]:
    """Return the kind of device that tensors are on.

    Raises:
        GraceError: if CUDA is asked for and absent.
    """
    if settings.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise GraceError("engine.device: no CUDA device is visible to torch; use engine.device=cpu")
    return settings.device


def chosen_precision(settings: EngineSettings) -> Literal["float32", "bfloat16", "float16"]:
    """Return the number format that the settings mean on this machine.

    ``auto`` is bfloat16 on a CPU that has instructions for it, else float32.

    Raises:
        GraceError: if CUDA is asked for and absent.
    """
    if settings.precision != "auto":
        return settings.precision
    on_cpu = device_name(settings) == "cpu"
    return "bfloat16" if on_cpu and computes_in_bfloat16() else "float32"


@cache
def can_compile(device: str) -> bool:
    """Return True if there is a compiler for a kind of device; it is tried on one operation.

    It needs a C++ tool chain, which slim machines lack.
    """
    try:
        torch.compile(torch.sin)(torch.ones(2, device=device))
    except Exception as error:
        reason = in_one_line(error)
        text = f"steps are not compiled, the compiler fails: {reason}"
        warnings.warn(text, GraceWarning, stacklevel=2)
        return False
    return True
