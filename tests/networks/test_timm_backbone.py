import sys

import pytest
import torch

from grace.networks.timm_backbone import TimmBackbone

timm = pytest.importorskip("timm", reason="the timm extra is not installed")


def test_features_are_timms_own() -> None:
    ours = TimmBackbone("resnet10t", 1, 0).eval()
    theirs = timm.create_model("resnet10t", num_classes=0, in_chans=1).eval()
    weights = {name.removeprefix("body."): value for name, value in ours.state_dict().items()}
    theirs.load_state_dict(weights)
    images = torch.randn(2, 1, 32, 32)
    assert ours.feature_dim == theirs.num_features
    assert torch.equal(ours(images), theirs(images))


def test_resnet_is_cut_before_its_last_stage() -> None:
    network = TimmBackbone("resnet10t", 3, 0).eval()
    first, second = network.stages()
    images = torch.randn(2, 3, 32, 32)
    assert first(images).shape[1] == 256
    assert torch.equal(second(first(images)), network(images))


def test_other_models_state_their_true_width_and_refuse_to_be_cut() -> None:
    # timm's documentation: MobileNetV3 small 050 pools 288 channels, then a layer widens to 1024.
    network = TimmBackbone("mobilenetv3_small_050", 3, 0).eval()
    assert network.feature_dim == 1024
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 1024)
    with pytest.raises(ValueError, match="'timm/mobilenetv3_small_050' cannot be cut"):
        network.stages()


def test_initialisation_repeats_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, same, other = (TimmBackbone("resnet10t", 3, seed, "backbone", 1) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(first.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(first.body.layer1[0].conv1.weight, other.body.layer1[0].conv1.weight)


def test_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="no model 'resnet10x': did you mean 'timm/resnet10t'"):
        TimmBackbone("resnet10x", 3, 0)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"pip install 'grace-cil\[timm\]'"):
        TimmBackbone("resnet10t", 3, 0)
