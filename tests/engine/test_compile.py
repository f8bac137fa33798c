"""The compiled path against the eager one: one program for all modules of a class."""

import shutil
import warnings
from typing import cast, final

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.randomness import generator
from grace.data.augmentation import build_augmentation
from grace.engine import parts as graph
from grace.engine.device import can_compile
from grace.engine.phase import Batch, Loss, Part, Phase, PhaseResult
from grace.engine.trainer import Trainer
from grace.methods.classification import classification
from grace.nn.heads import LinearHead
from grace.settings.experiment import EngineSettings
from grace.settings.recipe import Recipe
from support.tiny_streams import labelled

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler (g++) on the CPU"
)


@final
class Small(nn.Module):
    """The least that has what the real backbones have: convolution, batch norm, pooling."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        with torch.no_grad():
            self.conv.weight.normal_(0, 0.5, generator=generator(seed, "small"))

    @override
    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.norm(self.conv(images)).relu().mean(dim=(2, 3)))


def train(compile: bool) -> tuple[PhaseResult, dict[str, Tensor]]:
    """Two batches of 8 and one of 3 per epoch; two frozen instances and one that trains."""
    settings = EngineSettings(device="cpu", compile=compile, threads=1)
    trainer = Trainer(settings, build_augmentation("none", (0.4,) * 3, (0.3,) * 3, 8), 1)
    trainer.start_task(1)
    frozen = [Small(1).eval(), Small(2).eval()]
    backbone, head = Small(3), LinearHead(12, 2, generator(4, "head"))
    sizes: list[int] = []

    def objective(batch: Batch) -> dict[str, Loss]:
        sizes.append(len(batch.labels))
        assert not torch.equal(batch["0"], batch["1"])
        return classification(batch)

    phase = Phase(
        name="grow",
        parts=graph.frozen(frozen)
        | {"backbone": Part(backbone), "head": Part(head, ["0", "1", "backbone"])},
        objective=objective,
        recipe=Recipe(epochs=3, batch_size=8, lr=0.05),
        data=labelled({0: 10, 1: 9}),
    )
    result = trainer.optimise(phase)
    assert sizes == [8, 8, 3] * 3
    return result, {**backbone.state_dict(), **head.state_dict(prefix="head.")}


@needs_compiler
def test_compiled_equals_eager_and_instances_share_a_program() -> None:
    from torch._dynamo.utils import counters

    expected, weights = train(compile=False)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # What torch says while it compiles is about its own inner modules.
        warnings.simplefilter("ignore")
        # The trial whether there is a compiler is a program of its own.
        assert can_compile("cpu")
        torch.compiler.reset()
        counters.clear()
        found, compiled = train(compile=True)
    assert found.losses["classification"] == pytest.approx(
        expected.losses["classification"], rel=1e-4
    )
    for name, tensor in weights.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-3, atol=1e-5)
    # One program for what trains and one for both frozen instances; the smaller batch has none.
    assert counters["stats"]["unique_graphs"] == 2
