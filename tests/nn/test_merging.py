from typing import final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from typing_extensions import override

from grace.base.randomness import generator
from grace.nn.backbone import Backbone
from grace.nn.merging import merge_backbones
from grace.nn.resnets import CifarResNet
from support.typed import present, typed


@final
class Tiny(Backbone):
    def __init__(self, weights: list[float], mark: float, width: int = 2) -> None:
        super().__init__()
        self.name = "tiny"
        self.feature_dim = width
        self.map_channels = (width,)
        self.pool = nn.Identity()
        self.scale = nn.Parameter(torch.tensor(weights))
        self.norm = nn.BatchNorm1d(width)
        self.mark: Tensor
        self.register_buffer("mark", torch.tensor(mark))
        with torch.no_grad():
            self.norm.weight.fill_(mark)
            self.norm.running_mean = torch.full((width,), mark)
            self.norm.running_var = torch.full((width,), 2 * mark)
            self.norm.num_batches_tracked = torch.tensor(7)

    @override
    def stages(self) -> tuple[nn.Module, ...]:
        raise ValueError("not cut")

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.norm(images * self.scale),)


def test_average_by_hand() -> None:
    mergeable, provisional = Tiny([1.0, -2.0], mark=3.0), Tiny([5.0, 2.0], mark=7.0)
    merged = typed(Tiny, merge_backbones(mergeable, provisional, 0.75))
    # 0.75·1 + 0.25·5 = 2; 0.75·(−2) + 0.25·2 = −1; batch-norm weight 0.75·3 + 0.25·7 = 4.
    assert merged.scale.tolist() == [2.0, -1.0]
    assert merged.norm.weight.tolist() == [4.0, 4.0]
    # Statistics afresh, other buffers from the mergeable backbone.
    assert present(merged.norm.running_mean).tolist() == [0.0, 0.0]
    assert present(merged.norm.running_var).tolist() == [1.0, 1.0]
    assert int(present(merged.norm.num_batches_tracked)) == 0
    assert float(merged.mark) == 3.0
    # Halves are torch's running average of two.
    average = torch.optim.swa_utils.AveragedModel(mergeable)
    average.update_parameters(mergeable)
    average.update_parameters(provisional)
    half = typed(Tiny, merge_backbones(mergeable, provisional, 0.5))
    assert half.scale.tolist() == pytest.approx(typed(Tiny, average.module).scale.tolist())
    # Neither parent moves.
    assert mergeable.scale.tolist() == [1.0, -2.0]
    assert provisional.norm.weight.tolist() == [7.0, 7.0]


@settings(max_examples=10, deadline=None)
@given(st.floats(0, 1), st.integers(0, 100))
def test_merging_equal_backbones_returns_their_weights(weight: float, seed: int) -> None:
    backbone = CifarResNet(8, 3, generator(seed, "test"))
    twin = CifarResNet(8, 3, generator(seed, "test"))
    merged = merge_backbones(backbone, twin, weight)
    for one, two in zip(merged.parameters(), backbone.parameters(), strict=True):
        assert torch.equal(one, two)
        assert one.data_ptr() != two.data_ptr()


def test_other_shapes_and_names_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"'scale' is \(2,\) in one and \(3,\)") as raised:
        merge_backbones(Tiny([1.0, 1.0], 1.0), Tiny([1.0, 1.0, 1.0], 1.0, width=3), 0.5)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="absent"):
        merge_backbones(
            CifarResNet(8, 3, generator(0, "test")), CifarResNet(14, 3, generator(0, "test")), 0.5
        )
