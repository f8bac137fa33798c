import pytest
import torch

from grace.nn.resnets import CifarResNet
from grace.nn.weights import build_backbone
from grace.settings.experiment import BackboneSettings
from support.typed import typed


@pytest.mark.parametrize(
    ("name", "channels", "parameters"),
    [
        ("resnet32", 3, 463_504),
        ("resnet32", 1, 463_504 - 2 * 9 * 16),  # two input channels fewer in the stem
        ("resnet18", 3, 11_168_832),
        # torchvision's documented 21,797,672 less the 513,000 of fc and the larger stem's 7,680
        ("resnet34", 3, 21_797_672 - 513_000 - 7_680),
    ],
)
def test_names_build_what_they_say(name: str, channels: int, parameters: int) -> None:
    settings = BackboneSettings(name=name, stem="cifar")
    backbone = build_backbone(settings, channels, 0, "backbone")
    assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters


def test_timm_names_reach_timm() -> None:
    pytest.importorskip("timm", reason="the timm extra is not installed")
    backbone = build_backbone(BackboneSettings(name="timm/resnet10t"), 3, 0)
    assert backbone.feature_dim == 512


def test_seed_and_purpose_decide_the_weights() -> None:
    settings = BackboneSettings(name="resnet20")

    def stem(seed: int, *purpose: str | int) -> torch.Tensor:
        backbone = typed(CifarResNet, build_backbone(settings, 3, seed, *purpose))
        return next(backbone.stem.parameters())

    assert torch.equal(stem(1, "backbone", 1), stem(1, "backbone", 1))
    assert not torch.equal(stem(1, "backbone", 1), stem(2, "backbone", 1))
    assert not torch.equal(stem(1, "backbone", 1), stem(1, "backbone", 2))


def test_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="'resnet_32'; did you mean 'resnet32'"):
        build_backbone(BackboneSettings(name="resnet_32"), 3, 0)
