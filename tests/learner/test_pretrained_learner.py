"""Learners whose backbones start from a file of weights, frozen or trained, through their life."""

from pathlib import Path

import pytest
import torch

from grace.base.errors import DamagedError, GraceError
from grace.base.randomness import generator
from grace.base.tensors import encode
from grace.learner.document import ImagesRef
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.methods.preprocessing import pretraining
from grace.methods.probe import Probe
from grace.nn.resnets import CifarResNet
from grace.nn.weights import build_backbone
from grace.settings.experiment import BackboneSettings
from grace.settings.load import ConfigError, load_experiment
from support import tiny_streams
from support.quick_exports import operators_once as operators_once
from support.tiny_streams import class_names, labelled

pytest.importorskip("timm", reason="the timm extra is not installed")

MODEL = "timm/test_efficientnet"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    backbone = build_backbone(BackboneSettings(name=MODEL), 3, 77)
    path.write_bytes(encode(backbone.state_dict()))
    return path


def frozen(weights: Path, home: Path, **memory: object) -> Learner:
    settings = tiny_streams.settings(
        Probe.Settings(update=tiny_streams.recipe(20, lr=0.01)),
        backbone=BackboneSettings(name=MODEL, weights=str(weights), input_size=32),
    )
    settings = settings.model_copy(update={"memory": settings.memory.model_copy(update=memory)})
    return Learner.create(settings, shape=(3, 8, 8), directory=home)


def teach(learner: Learner, *classes: int, seed: int = 0) -> None:
    data = labelled(dict.fromkeys(classes, 9), seed=seed)
    learner.update(data.images, class_names(data))


def test_it_lives_on_without_the_file(weights: Path, tmp_path: Path) -> None:
    home = tmp_path / "model"
    made = frozen(weights, home, validation=2)
    # Constants and size are those of the pre-training.
    stated = pretraining(made.settings.backbone)
    assert (made.model.mean, made.model.std) == (stated.mean, stated.std)
    assert (made.model.enlarge.size, made.model.enlarge.interpolation) == (32, "bicubic")
    teach(made, 0, 1)
    store = ModelStore.open(home)
    first = store.document(1)
    for ref in (*first.exemplars.values(), *first.validation.values()):
        tensors = store.read(ref, "images")
        assert (tensors["features"].dtype, tensors["features"].shape[1]) == (torch.float16, 256)
        assert len(tensors["features"]) == len(tensors["images"])
    again = Learner.load(home)
    teach(again, 2)
    # The backbone is stored once, whatever the number of versions.
    assert first.parts["backbone.0"] == store.document(2).parts["backbone.0"]
    # Eight images were left of the nine; no exemplar passed the backbone again.
    first_work = again.history[-1].work[0]
    assert (first_work.name, first_work.images) == ("features", 8)
    test = labelled({0: 4, 1: 4, 2: 4}, seed=9)
    loaded = Learner.load(home)
    assert loaded.predict(test.images) == again.predict(test.images)
    loaded.rollback(1)
    assert set(loaded.predict(test.images)) <= {"class 0", "class 1"}
    loaded.forget("class 0")
    assert set(loaded.predict(test.images)) == {"class 1"}
    # Forged features are refused.
    document = store.document(2)
    kept = document.exemplars[1]
    tensors = dict(store.read(kept, "images"))
    tensors["features"] = tensors["features"][:, :-1].contiguous()
    other = ImagesRef(num=kept.num, **dict(store.put(tensors)))
    exemplars = {**document.exemplars, 1: other}
    store.write(document.model_copy(update={"number": 3, "exemplars": exemplars}))
    with pytest.raises(DamagedError, match="features that the network has not"):
        Learner.load(home, 3)


def test_a_ceiling_holds(weights: Path, tmp_path: Path) -> None:
    home = tmp_path / "model"
    made = frozen(weights, home, size=None, max_mb=2.2, validation=2)
    for classes in ((0, 1), (2, 3), (4, 5)):
        teach(made, *classes)
    assert all(own.num_bytes <= 2.2e6 for own in ModelStore.open(home).survey().documents)
    assert len(made.method.memory) > 0


def test_it_is_exported_with_its_enlargement(weights: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    made = frozen(weights, tmp_path / "model", validation=2)
    teach(made, 0, 1)
    done = made.export(tmp_path / "model.onnx")
    assert done.checked_on == "held-out images"
    assert done.max_difference < 1e-4


def test_what_contradicts_the_method_is_refused() -> None:
    for override in (
        ["backbone.train=frozen"],
        ["method=probe", "backbone.train=all"],
        ["method=memo", "backbone.train=last-stages"],
    ):
        with pytest.raises(ConfigError, match="cannot learn with"):
            load_experiment("digits", override)


def test_images_larger_than_the_backbones_are_refused() -> None:
    backbone = BackboneSettings(name=MODEL, input_size=8)
    settings = tiny_streams.settings(Probe.Settings(), backbone=backbone)
    with pytest.raises(GraceError, match=r"larger than backbone\.input_size 8"):
        Learner.create(settings, shape=(3, 16, 16))
    with pytest.raises(GraceError, match="squares"):
        Learner.create(settings, shape=(3, 8, 4))


def test_only_a_fresh_backbone_needs_the_file_again(tmp_path: Path) -> None:
    path, recipe = tmp_path / "start.safetensors", tiny_streams.recipe(1)
    path.write_bytes(encode(CifarResNet(20, 3, generator(77)).state_dict()))
    # The second update compresses into a student that is fresh.
    fresh = {"expand_at": (), "initialisation": "random"}
    method = Grace.Settings(base=recipe, grow=recipe, compress=recipe).model_copy(update=fresh)
    backbone = BackboneSettings(name="resnet20", weights=str(path))
    settings = tiny_streams.settings(method, backbone=backbone)
    made = Learner.create(settings, shape=(3, 8, 8), directory=tmp_path / "model")
    teach(made, 0, 1)
    path.unlink()
    loaded = Learner.load(tmp_path / "model")
    test = labelled({0: 3}, seed=5).images
    assert torch.equal(loaded.predict_proba(test), made.predict_proba(test))
    with pytest.raises(ValueError, match=r"safetensors' is missing: set backbone.weights"):
        teach(loaded, 2)
    assert loaded.class_names == ["class 0", "class 1"]
