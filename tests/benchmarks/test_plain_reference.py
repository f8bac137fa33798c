import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def plain() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
        yield importlib.import_module("plain")


def coloured(num_per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Six classes of noisy 32-pixel images, each of a colour of its own."""
    random = np.random.default_rng(seed)
    colours = np.array(
        [
            [220, 30, 30],
            [30, 220, 30],
            [30, 30, 220],
            [220, 220, 30],
            [220, 30, 220],
            [30, 220, 220],
        ]
    )
    labels = np.repeat(np.arange(6), num_per_class)
    noise = random.integers(-25, 26, (len(labels), 32, 32, 3))
    return (colours[labels][:, None, None] + noise).astype(np.uint8), labels


def test_tiny_stream_grows_and_compresses(plain: ModuleType) -> None:
    train, test = coloured(16, seed=0), coloured(4, seed=1)
    recipe = plain.PlainRecipe(
        base_epochs=5, grow_epochs=1, compress_epochs=1, batch_size=8, lr=0.05, depth=8
    )
    result = plain.run_plain(
        *train, *test, [2, 2, 2], ["compress", "grow"], recipe, 18, 0, "cpu", num_workers=0
    )
    seconds = dict(result["seconds"])
    total = seconds.pop("total")
    assert result["backbones"] == 2
    # By hand: ResNet-8 is ResNet-32 less four blocks (two convolutions, two batch norms) a stage.
    missing = sum(4 * (2 * 9 * width**2 + 4 * width) for width in (16, 32, 64))
    assert result["parameters"] == 2 * (463_504 - missing)
    # Eq. 5-7: P = 2/4, B = 16/(16 + 18//2 = 9), γ = 5.
    weight = ((0.5**5 + (16 / 25) ** 5) / 2) ** 0.2
    assert result["merge_weights"] == [pytest.approx(weight), None]
    assert len(result["losses"]) == 5 + 2 + 1
    assert np.isfinite(result["losses"]).all()
    assert all(0 < score <= 1 for score in result["saturations"])
    assert result["accuracies"][0] == 100.0  # two colours
    assert all(part > 0 for part in seconds.values())
    assert sum(seconds.values()) == pytest.approx(total, rel=0.05)


def test_resnet32_has_the_published_parameter_count(plain: ModuleType) -> None:
    assert sum(parameter.numel() for parameter in plain.ResNet(32).parameters()) == 463_504


def test_parts_agree_with_arithmetic_by_hand(plain: ModuleType) -> None:
    # docs/how-grace-works.md: rows ±e₁, ±e₂ have effective rank 2 of 3; ±3e₁, ±e₂ have 1.7548.
    rows = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]], dtype=np.float32)
    assert plain.saturation(rows) == pytest.approx(2 / 3, abs=1e-6)
    stretched = rows * np.array([3, 1, 1], dtype=np.float32)
    assert plain.saturation(stretched) == pytest.approx(1.7548 / 3, abs=1e-4)
    # Unit rows at 0°, 90°, 60° and 45°: mean (0.5518, 0.6433). The nearest is 45° (0.168 away, 60°
    # is 0.229); with it, 60° brings the running mean nearest (0.152; 90° 0.289; 0° 0.418).
    angles = np.deg2rad([0, 90, 60, 45])
    unit = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert plain.herded(unit * np.float32(5), 9)[:2] == [3, 2]
    head = plain.make_head(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]]))
    plain.align(head, 1)  # γ = 3/10
    assert head.weight[2].tolist() == pytest.approx([1.8, 2.4])
