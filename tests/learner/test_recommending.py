"""The settings chosen for a new learner: they fit images, ceiling and machine, and give way."""

from pathlib import Path
from typing import Any

import pytest

from grace.engine.device import Device
from grace.learner.call import LearnCall
from grace.learner.recommend import BACKBONE_BYTES, new_settings, recommend, shorter_side
from grace.methods.module_factory import ModuleFactory
from grace.settings.load import load_experiment
from support.picture_folders import folder

CPU: dict[str, Any] = {"shortest": 64, "has_gpu": False}
GPU = CPU | {"has_gpu": True}


def chosen(facts: dict[str, Any], *texts: str) -> dict[str, str]:
    found = recommend(new_settings("folder", texts), texts, **facts)
    return dict(text.split("=", 1) for text in found)


@pytest.mark.parametrize(
    ("facts", "max_mb", "backbone", "side"),
    [
        (CPU, None, "resnet20", "32"),
        (CPU | {"shortest": 16}, None, "resnet20", "16"),
        (CPU | {"shortest": 4}, None, "resnet20", "8"),
        (CPU | {"shortest": None}, 300, "resnet20", "32"),
        (GPU, None, "resnet18", "64"),
        (GPU | {"shortest": 40}, 224, "resnet18", "40"),
        (GPU, 223, "resnet32", "64"),
        (GPU, 50, "resnet32", "64"),
        (GPU, 49, "resnet32", "32"),
        (GPU, 5, "resnet20", "32"),
    ],
)
def test_backbone_and_side_fit(
    facts: dict[str, Any], max_mb: float | None, backbone: str, side: str
) -> None:
    texts = [] if max_mb is None else [f"memory.max_mb={max_mb}"]
    found = chosen(facts, *texts)
    assert (found["backbone.name"], found["data.image_size"]) == (backbone, side)
    memory = new_settings("folder", texts).memory
    assert (memory.size, memory.validation) == (2000 if max_mb is None else None, 50)


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ("data.image_size=48", {"data.image_size"}),
        ("budget.minutes=10", {"budget.minutes"}),
        ("budget.passes=9", {"budget.minutes"}),
        ("method.base.epochs=7", {"method.base.epochs", "budget.minutes"}),
        ("method.grow.batch_size=8", {"method.grow.batch_size"}),
        ("method.relative_threshold=1.5", {"method.relative_threshold"}),
        ("method.threshold=0.5", {"method.relative_threshold"}),
        ("method.expand_at=[3]", {"method.relative_threshold"}),
        # A recipe of the user's own making stays whole.
        *(
            (given, {f"method.base.{name}" for name in ("epochs", "batch_size", "schedule")})
            for given in ("method.base.milestones=[10,20]", "method.base.optimiser=adamw")
        ),
    ],
)
def test_what_is_given_is_not_chosen(given: str, gone: set[str]) -> None:
    assert chosen(CPU).keys() - chosen(CPU, given).keys() == gone


def test_weights_keep_their_backbone_and_size_and_freeze_it() -> None:
    weights = "backbone.weights=some.safetensors"
    assert not {"backbone.name", "data.image_size"} & chosen(CPU, weights).keys()
    given = [weights, "backbone.name=timm/test_efficientnet"]
    plain, full = (
        new_settings("folder", [*given, *more])
        for more in ((), ("backbone.train=all", "method.grow.lr=0.05"))
    )
    assert plain.backbone.input_size == full.backbone.input_size == "model"
    assert (plain.method.name, plain.backbone.train, full.method.name) == (
        "probe",
        "frozen",
        "grace",
    )
    # Training all of it lowers the rates that are not given.
    recipes = dict(full.method)
    assert (recipes["base"].lr, recipes["grow"].lr) == pytest.approx((0.01, 0.05))
    assert new_settings("folder", [weights, "method=der"]).method.name == "der"
    with pytest.raises(ValueError, match="would be random"):
        new_settings("folder", ["backbone.train=frozen"])


@pytest.mark.parametrize("method", ["grace", "foster", "icarl", "create"])
def test_methods_resolve_without_warnings(method: str, tmp_path: Path) -> None:
    images = folder(tmp_path / "images", "ant", "bee", side=40)
    (images / "ant" / "000.png").write_bytes(b"no image")
    assert shorter_side(images) == 40
    asked = [f"method={method}", "engine.device=cpu"]
    call = LearnCall(model=None, images=images, overrides=asked)  # Warnings are errors.
    settings = call.wanted
    assert (settings.backbone.name, settings.data.image_size) == ("resnet20", 32)
    assert (settings.budget.minutes, settings.method.name, settings.data.channels) == (3, method, 3)
    assert call.chosen == [
        "network   resnet20 at 32 pixels, for a CPU",
        f"training  {method}, about 3 minutes an update at most",
        "memory    up to 2000 old images; up to 50 of each class held out",
    ]
    taken = LearnCall(model=None, images=tmp_path, experiment="folder")
    assert (taken.wanted.backbone.name, taken.chosen) == ("resnet18", ())


@pytest.mark.parametrize("name", BACKBONE_BYTES)
def test_the_bytes_of_backbones_are_those_of_their_weights(name: str) -> None:
    settings = load_experiment("folder", [f"backbone.name={name}"])
    made = ModuleFactory(settings, 3, Device.from_settings(settings.engine)).backbone("any")
    found = sum(tensor.nbytes for tensor in made.state_dict().values())
    assert abs(found - BACKBONE_BYTES[name]) < 1000
