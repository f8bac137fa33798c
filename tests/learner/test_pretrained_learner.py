"""Learners whose backbones start from a file of weights, with and without that file."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from grace.base.randomness import generator
from grace.base.tensors import encode
from grace.learner.learner import Learner
from grace.methods.der import DER
from grace.methods.grace import Grace
from grace.methods.memo import Memo
from grace.nn.resnets import CifarResNet
from grace.settings.experiment import BackboneSettings
from grace.settings.load import describe_settings
from support import tiny_streams


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "start.safetensors"
    path.write_bytes(encode(start()))
    return path


def start() -> dict[str, Tensor]:
    return CifarResNet(20, 3, generator(77)).state_dict()


Kind = type[DER.Settings | Memo.Settings | Grace.Settings]


def learner(kind: Kind, weights: Path, home: Path) -> Learner:
    # So small a rate moves no weight by more than 1e-6.
    recipe = tiny_streams.recipe(1).model_copy(update={"lr": 1e-9, "weight_decay": 0.0})
    method = kind(base=recipe, grow=recipe)
    if isinstance(method, Grace.Settings):
        # The second update compresses into a student that is fresh.
        fresh = {"compress": recipe, "expand_at": (), "initialisation": "random"}
        method = method.model_copy(update=fresh)
    settings = tiny_streams.settings(
        method,
        backbone=BackboneSettings(name="resnet20", weights=str(weights)),
    )
    return Learner.create(settings, shape=(3, 8, 8), directory=home)


def update(learner: Learner, *classes: int) -> None:
    data = tiny_streams.labelled(dict.fromkeys(classes, 6))
    learner.update(data.images, tiny_streams.class_names(data))


@pytest.mark.parametrize("kind", [DER.Settings, Memo.Settings])
def test_the_backbone_of_every_task_starts_from_them(
    kind: Kind, weights: Path, tmp_path: Path
) -> None:
    model = learner(kind, weights, tmp_path / "model")
    update(model, 0, 1)
    update(model, 2)
    network = model.method.network
    assert len(network.backbones) == 2
    expected = start()
    last = "stage.0.2.conv2.weight" if kind is Memo.Settings else "stage3.2.conv2.weight"
    for backbone in network.backbones:
        found = backbone.state_dict()[last]
        torch.testing.assert_close(found, expected["stage3.2.conv2.weight"], atol=1e-6, rtol=0)
    path = {row.path: row for row in describe_settings(model.settings)}["backbone.weights"]
    assert (path.value, path.is_default) == (str(weights), False)


def test_a_saved_learner_holds_its_own_weights(weights: Path, tmp_path: Path) -> None:
    model = learner(DER.Settings, weights, tmp_path / "model")
    update(model, 0, 1)
    probe = tiny_streams.labelled({0: 3}, seed=5).images
    expected = model.predict_proba(probe)
    weights.unlink()
    loaded = Learner.load(tmp_path / "model")
    assert loaded.settings.backbone.weights == str(weights)
    assert torch.equal(loaded.predict_proba(probe), expected)
    # DER's later backbones start as copies of the last one.
    update(loaded, 2)
    assert len(loaded.method.network.backbones) == 2


def test_an_update_with_a_fresh_backbone_needs_the_file(weights: Path, tmp_path: Path) -> None:
    model = learner(Grace.Settings, weights, tmp_path / "model")
    update(model, 0, 1)
    weights.unlink()
    loaded = Learner.load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"start.safetensors' is missing: set backbone.weights"):
        update(loaded, 2)
    assert loaded.class_names == ["class 0", "class 1"]


def test_wrong_weights_are_refused_before_anything_is_learnt(weights: Path, tmp_path: Path) -> None:
    weights.write_bytes(encode({**start(), "stem.2.weight": torch.zeros(1)}))
    with pytest.raises(ValueError, match="unknown tensor 'stem"):
        learner(DER.Settings, weights, tmp_path / "model")
    assert not (tmp_path / "model").exists()
