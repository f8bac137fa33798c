"""What a method keeps is judged before anything is made of it."""

import pytest
import torch
from torch import nn

from grace.base.errors import DamagedError
from grace.engine.device import Device
from grace.methods.module_factory import ModuleFactory
from grace.methods.replay import Replay
from grace.methods.slots import ModuleSlot
from grace.methods.state import DeclaredState, MethodState
from grace.settings.experiment import ExperimentSettings
from support.tiny_streams import recipe, settings
from support.typed import present

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def factory() -> ModuleFactory:
    chosen: ExperimentSettings = settings(Replay.Settings(base=recipe(), update=recipe()))
    return ModuleFactory(chosen, 3, Device.from_settings(chosen.engine))


def test_a_module_of_another_form_is_refused_before_it_is_made() -> None:
    """The settings of a stranger's file may ask for a module of any size."""
    made = 0

    def make() -> nn.Linear:
        nonlocal made
        made += 1
        return nn.Linear(3, 2)

    def sketch() -> nn.Linear:
        return nn.Linear(3, 2, device="meta")

    state = DeclaredState(factory())
    slot = state.add(ModuleSlot("guide", make, sketch))
    network = state._factory.network(1, 4)
    state.network.value, slot.value = network, make()
    saved = state.collect()
    assert made == 1
    wide = {**saved.parts, "guide": {"weight": torch.zeros(5, 3), "bias": torch.zeros(5)}}
    lacking = {name: part for name, part in saved.parts.items() if name != "guide"}
    wrong = (wide, r"is torch.float32 \(5, 3\), not"), (lacking, "lacks the guide")
    for parts, message in wrong:
        with pytest.raises(DamagedError, match=message):
            state.restore(MethodState({}, parts), 4)
    assert made == 1
    # Bytes are counted without making one either: 8 numbers, and 4 · 64 + 4 more of the head.
    before = state.bytes_after(4)
    assert state.bytes_after(5) == before + 4 * 65
    assert made == 1
    state.restore(saved, 4)
    assert made == 2
    assert torch.equal(present(slot.value).weight, saved.parts["guide"]["weight"])
    assert not present(slot.value).weight.requires_grad
