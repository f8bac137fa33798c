"""Methods that train the last stages of their backbones over a trunk that never changes."""

from typing import Any

import pytest
import torch

from grace.engine.phase import Phase, Work
from grace.learner.learner import Learner
from grace.methods.der import DER
from grace.methods.grace import Grace
from grace.settings.experiment import BackboneSettings
from support.tiny_streams import labelled, learn, learner, recipe, same, settings, state, watch

pytestmark = pytest.mark.usefixtures("tiny_backbones")

BACKBONE = BackboneSettings(name="resnet20", train="last-stages", last_stages=2)
BASE = {"base": recipe(), "grow": recipe()}
METHODS = {
    "grace": Grace.Settings(compress=recipe(), expand_at=(3,), **BASE),
    "fresh": Grace.Settings(compress=recipe(), expand_at=(), initialisation="random", **BASE),
    "previous": Grace.Settings(compress=recipe(), assess_on="previous", **BASE),
    "der": DER.Settings(**BASE),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_trunk_never_changes(name: str, tmp_path: Any) -> None:
    home = tmp_path / "model"
    chosen = settings(METHODS[name], backbone=BACKBONE)
    made = Learner.create(chosen, shape=(3, 8, 8), directory=home)
    trained: list[str] = []

    def hear(item: Work) -> None:
        if isinstance(item, Phase):
            assert not item.parts["trunk"].changes
            readers = [n for n, part in item.parts.items() if "images" in part.reads]
            assert readers == ["trunk"]
            trained.append(item.name)

    watch(made, before=hear)
    stream = [{0: 9, 1: 9}, {2: 9}, {3: 9}]
    if name != "der":
        stream.append({0: 5})
    learn(made, stream[0])
    trunk, first = made.method.network.trunk, made.method.network.backbones[0]
    # Stem and stage 1 of a ResNet-8 are the trunk; stages 2 and 3 learn.
    assert len(list(trunk.children())) == 2
    before, learnt = state(trunk), state(first)
    for counts in stream[1:]:
        learn(made, counts)
    network = made.method.network
    assert network.trunk is not None
    assert same(state(network.trunk), before)
    last = network.backbones[-1]
    assert not same(state(last), learnt)
    assert trained[0] == "base"
    expected = {"grace": 2, "fresh": 1, "previous": None, "der": 3}[name]
    assert expected is None or len(network.backbones) == expected
    # A saved learner has one trunk, and predicts the same.
    probe = labelled({0: 3, 3: 3}, seed=5).images
    loaded = Learner.load(home)
    assert same(loaded.scores(probe), made.scores(probe))


def test_the_first_task_trains_the_last_stages_alone() -> None:
    made = learner(METHODS["grace"], backbone=BACKBONE)
    fresh = made.method.factory.backbone(1)
    learn(made, {0: 9, 1: 9})
    trunk = made.method.network.trunk
    assert trunk is not None
    pixels = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(trunk(pixels), fresh.maps(pixels)[1])
