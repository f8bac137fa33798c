"""The worked example of CONTRIBUTING.md runs as it stands there."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import grace.settings.methods
from grace.settings.methods import ReplaySettings
from support.tiny_streams import class_names, labelled, learner, recipe

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    method, settings = blocks[:2]
    own = ModuleType("grace.settings.methods.aligned")
    monkeypatch.setitem(sys.modules, own.__name__, own)
    exec(settings, vars(own))  # noqa: S102 - a block of our own page
    model = vars(own)["AlignedSettings"]
    monkeypatch.setattr(grace.settings.methods, "AlignedSettings", model, raising=False)
    made = ModuleType("grace.methods.aligned")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(method, vars(made))  # noqa: S102
    return made


def test_the_new_rows_get_the_mean_length_of_the_old_ones(module: ModuleType) -> None:
    short = {"base": recipe(), "update": recipe()}
    made = learner(ReplaySettings(**short))
    settings = grace.settings.methods.AlignedSettings(**short)  # type: ignore[attr-defined]
    own = module.Aligned(settings, made.method.factory, made.method.memory)
    made.model.state.method = own
    for counts in ({0: 8, 1: 8}, {2: 8, 3: 8}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    lengths = made.method.network.head.weight.norm(dim=1)
    # Weight alignment by its definition: mean ‖w_new‖ = mean ‖w_old‖.
    torch.testing.assert_close(lengths[2:].mean(), lengths[:2].mean())
    assert [update.outcome.verdict for update in made.history] == ["start", "train"]
