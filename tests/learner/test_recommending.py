"""The settings chosen for a new learner: they fit images, ceiling and machine, and give way."""

from pathlib import Path
from typing import Any

import pytest

from grace.engine.device import Device
from grace.learner.call import LearnCall
from grace.learner.recommend import BACKBONE_BYTES, new_settings, recommend
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
        (CPU | {"shortest": 500}, None, "resnet20", "32"),
        (CPU | {"shortest": 16}, None, "resnet20", "16"),
        (CPU | {"shortest": 4}, None, "resnet20", "8"),
        (CPU | {"shortest": None}, None, "resnet20", "32"),
        (GPU, None, "resnet18", "64"),
        (GPU | {"shortest": 40}, None, "resnet18", "40"),
        (GPU, 300, "resnet18", "64"),
        (GPU, 100, "resnet32", "64"),
        (GPU, 5, "resnet20", "32"),
        (CPU, 5, "resnet20", "32"),
    ],
)
def test_backbone_and_side_fit(
    facts: dict[str, Any], max_mb: float | None, backbone: str, side: str
) -> None:
    found = chosen(facts, *([] if max_mb is None else [f"memory.max_mb={max_mb}"]))
    assert (found["backbone.name"], found["data.image_size"]) == (backbone, side)


@pytest.mark.parametrize(
    "given",
    [
        "backbone.name=resnet32",
        "data.image_size=48",
        "budget.minutes=10",
        "method.relative_threshold=1.5",
        "method.grow.batch_size=8",
    ],
)
def test_what_is_given_is_not_chosen(given: str) -> None:
    path = given.partition("=")[0]
    assert chosen(CPU).keys() - chosen(CPU, given).keys() == {path}


def test_a_recipe_of_the_users_own_making_stays_whole() -> None:
    found = chosen(CPU, "method.base.milestones=[10,20]")
    assert not [path for path in found if path.startswith("method.base.")]
    assert found["method.grow.schedule"] == "cosine"
    assert not [p for p in chosen(CPU, "method.base.optimiser=adamw") if "base" in p]


@pytest.mark.parametrize("given", ["method.threshold=0.5", "method.expand_at=[3]"])
def test_who_sets_a_threshold_gets_no_other(given: str) -> None:
    assert "method.relative_threshold" not in chosen(CPU, given)


def test_weights_keep_their_backbone_and_size() -> None:
    found = chosen(CPU, "backbone.weights=some.safetensors")
    assert not {"backbone.name", "data.image_size"} & found.keys()


@pytest.mark.parametrize("method", ["grace", "der", "foster", "icarl", "ewc", "create", "tagfex"])
def test_every_method_resolves_without_warnings(method: str, tmp_path: Path) -> None:
    images = folder(tmp_path / "images", "ant", "bee", side=40)
    asked = [f"method={method}", "engine.device=cpu"]
    call = LearnCall(model=None, images=images, overrides=asked)  # Warnings are errors.
    settings, reasons = call.wanted, call.chosen
    assert (settings.backbone.name, settings.data.image_size) == ("resnet20", 32)
    assert settings.budget.minutes == 3
    assert settings.method.name == method
    assert len(reasons) == 3
    assert reasons[0] == "network   resnet20 at 32 pixels, for a CPU"


@pytest.mark.parametrize("given", ["method.base.epochs=7", "budget.passes=9"])
def test_who_says_how_long_to_train_gets_no_minutes(given: str) -> None:
    left_out = chosen(CPU).keys() - chosen(CPU, given).keys()
    assert left_out - {"method.base.epochs"} == {"budget.minutes"}


def test_a_named_experiment_is_taken_as_it_is(tmp_path: Path) -> None:
    call = LearnCall(model=None, images=tmp_path, experiment="folder")
    assert (call.wanted.backbone.name, call.chosen) == ("resnet18", ())


def test_unreadable_files_do_not_count(tmp_path: Path) -> None:
    images = folder(tmp_path / "images", "ant", "bee", side=20)
    (images / "ant" / "000.png").write_bytes(b"no image")
    call = LearnCall(model=None, images=images, overrides=["engine.device=cpu"])
    assert call.wanted.data.image_size == 20


@pytest.mark.parametrize("name", BACKBONE_BYTES)
def test_the_bytes_of_backbones_are_those_of_their_weights(name: str) -> None:
    settings = load_experiment("folder", [f"backbone.name={name}"])
    made = ModuleFactory(settings, 3, Device.from_settings(settings.engine)).backbone("any")
    found = sum(tensor.nbytes for tensor in made.state_dict().values())
    assert abs(found - BACKBONE_BYTES[name]) < 1000
