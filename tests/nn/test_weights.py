"""Backbones that start from pre-trained weights: equal outputs, or one line that says why not."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from grace.base.files import read_exactly
from grace.base.randomness import generator
from grace.nn import timm_backbone, weights
from grace.nn.resnets import CifarResNet
from grace.nn.timm_backbone import TimmBackbone
from grace.nn.weights import build_backbone, digest_of_weights
from grace.settings.experiment import BackboneSettings

MakeFile = Callable[[Mapping[str, Tensor]], str]


@pytest.fixture
def make_file(tmp_path: Path) -> MakeFile:
    """Writes a file as others write it, by the safetensors package."""

    def make(tensors: Mapping[str, Tensor]) -> str:
        path = tmp_path / f"w{len(list(tmp_path.iterdir()))}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        return str(path)

    return make


def lived(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every tensor, batch norm's statistics too, numbers that a fresh module does not have."""
    draws = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if name.endswith("num_batches_tracked"):
            tensor.fill_(7)
        else:
            tensor.copy_(0.05 + 0.1 * torch.rand(tensor.shape, generator=draws))
    return module.eval()


def images(channels: int = 3, side: int = 32) -> Tensor:
    return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(1))


def resnet18_with_classifier() -> nn.Module:
    from torchvision.models import resnet18

    return lived(resnet18(weights=None, num_classes=5))


def with_file(name: str, path: str, **others: Any) -> BackboneSettings:
    return BackboneSettings(name=name, weights=path, **others)


@pytest.mark.parametrize("prefix", ["", "body."])
def test_torchvisions_own_state_gives_its_outputs(make_file: MakeFile, prefix: str) -> None:
    theirs = resnet18_with_classifier()
    path = make_file({f"{prefix}{name}": t for name, t in theirs.state_dict().items()})
    ours = build_backbone(with_file("resnet18", path), 3, 0)
    assert ours.training
    theirs.fc = nn.Identity()
    with torch.no_grad():
        assert torch.equal(ours.eval()(images()), theirs(images()))
    counter = ours.state_dict()["body.bn1.num_batches_tracked"]
    assert int(counter) == 7


@pytest.mark.parametrize("name", ["resnet10t", "convnext_atto", "test_vit", "test_efficientnet"])
def test_timms_checkpoint_gives_timms_outputs(make_file: MakeFile, name: str) -> None:
    timm = pytest.importorskip("timm", reason="the timm extra is not installed")
    theirs = lived(timm.create_model(name, num_classes=7))
    # As on its hub: with the classifier.
    settings = with_file(f"timm/{name}", make_file(theirs.state_dict()))
    ours = build_backbone(settings, 3, 0).eval()
    side = theirs.default_cfg["input_size"][1]
    theirs.reset_classifier(0)
    with torch.no_grad():
        assert torch.equal(ours(images(side=side)), theirs(images(side=side)))


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "timm/resnet10t", "timm/test_vit"])
def test_weights_for_colour_see_a_grey_image_as_its_copies_in_three_channels(
    make_file: MakeFile, name: str
) -> None:
    if name.startswith("timm/"):
        pytest.importorskip("timm", reason="the timm extra is not installed")
    colour = build_backbone(BackboneSettings(name=name), 3, 5)
    settings = with_file(name, make_file(colour.state_dict()))
    grey = build_backbone(settings, 1, 0).eval()
    side = 160 if name == "timm/test_vit" else 32
    with torch.no_grad():
        expected = colour.eval()(images(1, side).expand(-1, 3, -1, -1))
        torch.testing.assert_close(grey(images(1, side)), expected, atol=1e-4, rtol=1e-4)


def test_every_backbone_of_a_run_starts_from_them(make_file: MakeFile) -> None:
    state = lived(CifarResNet(20, 3, generator(3))).state_dict()
    settings = with_file("resnet20", make_file(state))
    weights._read_file.cache_clear()
    first, second = (build_backbone(settings, 3, seed, "backbone", seed) for seed in (0, 1))
    assert all(torch.equal(first.state_dict()[name], state[name]) for name in state)
    assert all(torch.equal(second.state_dict()[name], state[name]) for name in state)
    # The file is read once, and what one backbone learns does not reach the other.
    assert weights._read_file.cache_info().misses == 1
    lived(first, seed=9)
    third = build_backbone(settings, 3, 2)
    assert all(torch.equal(third.state_dict()[name], state[name]) for name in state)


def test_a_file_that_was_changed_is_read_again(make_file: MakeFile) -> None:
    state = lived(CifarResNet(20, 3, generator(3))).state_dict()
    path = make_file(state)
    before = digest_of_weights(with_file("resnet20", path))
    state["stem.0.weight"] = state["stem.0.weight"] + 1
    save_file(state, path)
    os.utime(path, ns=(1, 1))
    assert digest_of_weights(with_file("resnet20", path)) != before


def faulty(state: dict[str, Tensor], fault: str) -> dict[str, Tensor]:
    match fault:
        case "missing":
            state["layer2.0.conv_1.weight"] = state.pop("layer2.0.conv1.weight")
        case "unknown":
            state["layer2.0.conv1.bais"] = torch.zeros(2)
        case "misshapen":
            state["layer1.0.bn1.bias"] = torch.zeros(63)
        case "integers":
            state["layer1.0.bn1.bias"] = torch.zeros(64, dtype=torch.int64)
        case "not finite":
            state["layer1.0.bn1.bias"][3] = torch.inf
        case "too large":
            state["layer1.0.bn1.bias"] = torch.full((64,), 1e300, dtype=torch.float64)
        case "small stem":
            state["conv1.weight"] = torch.zeros(64, 3, 3, 3)
        case "grey":
            state["conv1.weight"] = torch.zeros(64, 1, 7, 7)
    return state


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", "lack tensor 'layer2.0.conv1.weight': they are not those of backbone.name"),
        ("unknown", "have an unknown tensor 'layer2.0.conv1.bais': they are not"),
        ("misshapen", r"'layer1.0.bn1.bias' of the weights is \(63,\), not \(64,\): they are not"),
        ("integers", r"'layer1.0.bn1.bias' of the weights is torch.int64, not torch.float32"),
        ("not finite", "'layer1.0.bn1.bias' of the weights holds numbers not finite"),
        ("too large", "'layer1.0.bn1.bias' of the weights holds numbers not finite"),
        ("small stem", r"\(64, 3, 7, 7\): set backbone.stem=conv3 or backbone.stem=cifar"),
        ("grey", r"is \(64, 1, 7, 7\), not \(64, 3, 7, 7\): set data.channels=1"),
    ],
)
def test_another_models_weights_are_refused(make_file: MakeFile, fault: str, message: str) -> None:
    path = make_file(faulty(resnet18_with_classifier().state_dict(), fault))
    with pytest.raises(ValueError, match=message) as raised:
        build_backbone(with_file("resnet18", path), 3, 0)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    absent = tmp_path / "absent.safetensors"
    with pytest.raises(ValueError, match=r"absent\.safetensors. is missing"):
        build_backbone(with_file("resnet20", str(absent)), 3, 0)
    with pytest.raises(ValueError, match=r"~nobody-here/w.* is missing"):
        build_backbone(with_file("resnet20", "~nobody-here/w.safetensors"), 3, 0)
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    with pytest.raises(ValueError, match="no regular file"):
        build_backbone(with_file("resnet20", str(folder)), 3, 0)
    pickled = tmp_path / "pickled.safetensors"
    torch.save({"stem.0.weight": torch.zeros(3)}, pickled)
    with pytest.raises(ValueError, match=r"pickled.safetensors' is damaged"):
        build_backbone(with_file("resnet20", str(pickled)), 3, 0)
    os.truncate(pickled, 2_000_000_000)  # A hole: its beginning is read alone.
    with (
        mock.patch("grace.nn.weights.read_exactly", wraps=read_exactly) as reading,
        pytest.raises(ValueError, match=r"pickled.safetensors' is damaged"),
    ):
        build_backbone(with_file("resnet20", str(pickled)), 3, 0)
    assert [call.args[3] for call in reading.call_args_list] == [8]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], list[str]]:
    """Stands for timm's hub: weights of our own, or an error; returns what was fetched."""
    timm = pytest.importorskip("timm", reason="the timm extra is not installed")
    create = timm.create_model

    def stand(error: Exception | None) -> list[str]:
        fetched: list[str] = []

        def made(name: str, pretrained: bool, **others: Any) -> Any:
            model = create(name, pretrained=False, **others)
            if not pretrained:
                return model
            fetched.append(name)
            if error is not None:
                raise error
            return lived(model)

        weights._read_timm.cache_clear()
        monkeypatch.setattr(timm, "create_model", made)
        return fetched

    return stand


TAGGED = BackboneSettings(name="timm/resnet10t.c3_in1k", weights="timm")


def test_timms_own_weights_are_fetched_once(
    hub: Callable[[Exception | None], list[str]], make_file: MakeFile
) -> None:
    fetched = hub(None)
    first, second = (build_backbone(TAGGED, 3, seed).eval() for seed in (0, 1))
    assert fetched == ["resnet10t.c3_in1k"]
    expected = lived(TimmBackbone("resnet10t", 3, 0).body)
    assert torch.equal(first(images()), expected(images()))
    assert torch.equal(second(images()), expected(images()))
    # The same weights in a file have the same digest, with or without classifier and counters.
    state = {name: t for name, t in expected.state_dict().items() if "tracked" not in name}
    path = make_file({**state, "fc.weight": torch.zeros(2, 512), "fc.bias": torch.zeros(2)})
    assert digest_of_weights(with_file(TAGGED.name, path)) == digest_of_weights(TAGGED)


def test_without_a_network_the_way_by_a_file_is_named(
    hub: Callable[[Exception | None], list[str]],
) -> None:
    hub(OSError("no route\nto host"))
    with pytest.raises(
        ValueError,
        match=r"'timm/resnet10t.c3_in1k' cannot be fetched \(no route to host\): put them into a "
        r"file and set backbone.weights=<path>.safetensors$",
    ):
        build_backbone(TAGGED, 3, 0)


def test_a_tag_that_timm_does_not_know_is_refused() -> None:
    pytest.importorskip("timm", reason="the timm extra is not installed")
    with pytest.raises(ValueError, match=r"no weights .*resnet10t\.c9"):
        timm_backbone.TimmBackbone("resnet10t.c9", 3, 0)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("resnet18", "timm", r"are for timm/<model>.<tag>, not for name 'resnet18'"),
        ("timm/resnet18", "timm", r"are for timm/<model>.<tag>, not for name 'timm/resnet18'"),
        ("resnet18", "weights.pth", r"'weights.pth' should be none, timm, or a path ending in"),
    ],
)
def test_settings_that_name_no_weights_are_refused(name: str, given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BackboneSettings(name=name, weights=given)
