import sys

import pytest
import torch

from grace.nn.backbone import WithMaps
from grace.nn.branching import split
from grace.nn.expandable import copy_of
from grace.nn.timm_backbone import TimmBackbone

timm = pytest.importorskip("timm", reason="the timm extra is not installed")


def test_resnet_is_cut_before_its_last_stage() -> None:
    network = TimmBackbone("resnet10t", 3, 0).eval()
    trunk, branch = split(network)
    images = torch.randn(2, 3, 32, 32)
    assert trunk(images).shape[1] == 256
    assert torch.equal(branch(trunk(images)), network(images))


def test_other_models_state_their_true_width_and_refuse_to_be_cut() -> None:
    # timm's documentation: MobileNetV3 small 050 pools 288 channels, then a layer widens to 1024.
    network = TimmBackbone("mobilenetv3_small_050", 3, 0).eval()
    assert (network.feature_dim, network.map_channels) == (1024, (288,))
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 1024)
    with pytest.raises(ValueError, match="'timm/mobilenetv3_small_050' cannot be cut"):
        split(network)


@pytest.mark.parametrize(
    ("name", "form", "shape", "channels"),
    [
        # By hand: a last stride of 32 leaves 7 of 224 pixels and 6 of resnet10t's 176; a ViT-Ti/16
        # has 14·14 patches and the class token.
        ("resnet10t", "resnet", (2, 512, 6, 6), (64, 64, 128, 256, 512)),
        ("vit_tiny_patch16_224", "tokens", (2, 197, 192), (192,)),
        ("swin_tiny_patch4_window7_224", "channels_last", (2, 768, 7, 7), (768,)),
        ("convnext_atto", "map", (2, 320, 7, 7), (320,)),
        # The stem, six groups of blocks, and the last group with the convolution after it.
        (
            "efficientnet_lite0",
            "efficientnet",
            (2, 1280, 7, 7),
            (32, 16, 24, 40, 80, 112, 192, 1280),
        ),
        # It gives two maps of tokens, whose features are put side by side: 96 + 192.
        ("crossvit_tiny_240", "vector", (2, 288), (288,)),
    ],
)
def test_maps_are_timms_own(
    name: str, form: str, shape: tuple[int, ...], channels: tuple[int, ...]
) -> None:
    network = TimmBackbone(name, 3, 0).eval()
    side = network.body.default_cfg["input_size"][1]
    images = torch.randn(2, 3, side, side)
    assert network.form == form
    with torch.no_grad():
        maps, expected = network.maps(images), network.body(images)
        assert maps[-1].shape == shape
        assert network.map_channels == channels
        assert torch.equal(network(images), expected)
        features, last_map = WithMaps(network)(images)
        assert torch.equal(features, expected)
        assert torch.equal(last_map, maps[-1])
        # A copy has maps and a pool of its own.
        clone = copy_of(network)
        torch.nn.init.zeros_(next(network.parameters()))
        torch.nn.init.zeros_(list(network.parameters())[-1])
        assert torch.equal(clone(images), expected)
    own = {name.removeprefix("body.") for name in network.state_dict()}
    assert own == set(network.body.state_dict())


def test_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"'resnet10x'.*'timm/resnet10t'"):
        TimmBackbone("resnet10x", 3, 0)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"pip install 'grace-cil\[timm\]'"):
        TimmBackbone("resnet10t", 3, 0)
