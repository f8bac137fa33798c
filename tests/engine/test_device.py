"""Choice of device and precision, and the rule by which a phase is compiled."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from grace.engine.device import Device, can_compile
from grace.settings.experiment import EngineSettings
from grace.settings.recipe import Recipe


def device(**settings: object) -> Device:
    return Device.from_settings(EngineSettings.model_validate(settings))


def test_float16_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"engine\.precision: float16"):
        device(device="cpu", precision="float16")


def test_float16_is_refused_where_auto_finds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="float16"):
        device(device="auto", precision="float16")


def test_an_absent_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"no CUDA device .* engine\.device=cpu"):
        device(device="cuda")


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device(device="auto").torch_device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device(device="auto", precision="float16").torch_device.type == "cuda"
    assert device(device="cpu").torch_device.type == "cpu"


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_set(threads: int) -> None:
    before = torch.get_num_threads()
    try:
        device(device="cpu", threads=threads)
        assert torch.get_num_threads() == threads
        device(device="cpu")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("channels_last", [False, True])
def test_modules_are_placed_in_the_memory_layout(channels_last: bool) -> None:
    conv = device(device="cpu", channels_last=channels_last).place(nn.Conv2d(3, 4, 3))
    last = conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert last == channels_last


def test_autocast_only_below_float32() -> None:
    product = (torch.ones(2, 2), torch.ones(2, 2))
    with device(device="cpu").autocast():
        assert (product[0] @ product[1]).dtype == torch.float32
    with device(device="cpu", precision="bfloat16").autocast():
        assert (product[0] @ product[1]).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("fpu avx2 avx512f", torch.float32),
        ("fpu avx512f avx512_bf16", torch.bfloat16),
        ("amx_tile amx_bf16", torch.bfloat16),
        ("avx512_bf16x", torch.float32),
        ("", torch.float32),
    ],
)
def test_auto_precision_follows_the_instructions(
    monkeypatch: pytest.MonkeyPatch, flags: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr("grace.base.machine.processor_flags", lambda: flags)
    assert device(device="cpu", precision="auto").precision == dtype
    assert device(device="cpu").precision == torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device(device="auto", precision="auto").precision == torch.float32


class TestCompileRule:
    def test_true_and_false_decide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("grace.engine.device.can_compile", lambda device: True)
        tiny, long = (Recipe(epochs=1), 1, (3, 8, 8)), (Recipe(epochs=200), 50_000, (3, 32, 32))
        assert device(device="cpu", compile=True).compiles(*tiny)
        assert not device(device="cpu", compile=False).compiles(*long)

    def test_auto_weighs_the_pixels_of_the_phase(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("grace.engine.device.can_compile", lambda device: True)
        auto = device(device="cpu", compile="auto")
        # epochs · images · H · W against 2e8; the digits experiment: 20 · 388 · 64 = 496,640;
        # a first task of CIFAR-100 B0I10: 200 · 5000 · 1024 = 1.024e9.
        assert not auto.compiles(Recipe(epochs=20), 388, (1, 8, 8))
        assert auto.compiles(Recipe(epochs=200), 5000, (3, 32, 32))
        assert auto.compiles(Recipe(epochs=2), 1000, (3, 1000, 100))
        assert not auto.compiles(Recipe(epochs=2), 999, (3, 1000, 100))

    def test_auto_does_without_a_broken_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(function: object) -> Callable[[torch.Tensor], torch.Tensor]:
            def call(inputs: torch.Tensor) -> torch.Tensor:
                raise RuntimeError("no working C++ compiler found\nand a long story")

            return call

        monkeypatch.setattr("torch.compile", broken)
        can_compile.cache_clear()
        auto, work = device(device="cpu", compile="auto"), (Recipe(epochs=200), 5000, (3, 32, 32))
        with pytest.warns(UserWarning, match="not compiled.*no working C"):
            assert not auto.compiles(*work)
        can_compile.cache_clear()
