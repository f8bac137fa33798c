"""A learner over a frozen backbone from a file of weights, through its whole life."""

from pathlib import Path

import pytest
import torch

from grace.base.errors import DamagedError, GraceError
from grace.base.tensors import encode
from grace.learner.call import LearnCall
from grace.learner.document import ImagesRef
from grace.learner.learn import learn
from grace.learner.learner import Learner
from grace.learner.recommend import new_settings
from grace.learner.store import ModelStore
from grace.methods.preprocessing import pretraining
from grace.methods.probe import Probe
from grace.nn.weights import build_backbone
from grace.settings.experiment import BackboneSettings
from grace.settings.load import ConfigError, load_experiment
from support import tiny_streams
from support.picture_folders import folder
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


def made(weights: Path, home: Path, **memory: object) -> Learner:
    settings = tiny_streams.settings(
        Probe.Settings(update=tiny_streams.recipe(20, lr=0.01)),
        backbone=BackboneSettings(name=MODEL, weights=str(weights), input_size=32),
    )
    if memory:
        settings = settings.model_copy(update={"memory": settings.memory.model_copy(update=memory)})
    return Learner.create(settings, shape=(3, 8, 8), directory=home)


def teach(learner: Learner, *classes: int, seed: int = 0) -> None:
    data = labelled(dict.fromkeys(classes, 9), seed=seed)
    learner.update(data.images, class_names(data))


def test_constants_and_size_are_those_of_the_pre_training(weights: Path, tmp_path: Path) -> None:
    model = made(weights, tmp_path / "model")
    stated = pretraining(model.settings.backbone)
    assert (model.model.mean, model.model.std) == (stated.mean, stated.std)
    assert (model.model.enlarge.size, model.model.enlarge.interpolation) == (32, "bicubic")
    pixels = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    found = model.trainer._augmentation.normalise(pixels)
    assert found.shape == (1, 3, 32, 32)
    white = torch.tensor([(1 - m) / s for m, s in zip(stated.mean, stated.std, strict=True)])
    torch.testing.assert_close(found, white[:, None, None].expand(1, 3, 32, 32))


def test_it_lives_on_without_the_file(weights: Path, tmp_path: Path) -> None:
    home = tmp_path / "model"
    model = made(weights, home, validation=2)
    teach(model, 0, 1)
    first = ModelStore.open(home).document(1)
    again = Learner.load(home)
    swept = again.method.features
    assert swept is not None
    teach(again, 2)
    second = ModelStore.open(home).document(2)
    # The backbone is stored once, whatever the number of versions.
    assert first.parts["backbone.0"] == second.parts["backbone.0"]
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


def test_features_lie_beside_exemplars_and_held_out_images(weights: Path, tmp_path: Path) -> None:
    home = tmp_path / "model"
    teach(made(weights, home, validation=2), 0, 1)
    store = ModelStore.open(home)
    document = store.document(1)
    for ref in (*document.exemplars.values(), *document.validation.values()):
        tensors = store.read(ref, "images")
        assert tensors["features"].dtype == torch.float16
        assert len(tensors["features"]) == len(tensors["images"])
        assert tensors["features"].shape[1] == 256


def test_forged_features_are_refused(weights: Path, tmp_path: Path) -> None:
    home = tmp_path / "model"
    teach(made(weights, home), 0, 1)
    store = ModelStore.open(home)
    document = store.document(1)
    tensors = dict(store.read(document.exemplars[0], "images"))
    tensors["features"] = tensors["features"][:, :-1].contiguous()
    other = ImagesRef(num=document.exemplars[0].num, **dict(store.put(tensors)))
    forged = document.model_copy(
        update={"number": 2, "exemplars": {**document.exemplars, 0: other}}
    )
    store.write(forged)
    with pytest.raises(DamagedError, match="features that the network has not"):
        Learner.load(home, 2)


@pytest.mark.parametrize("max_mb", [2.2, 2.5])
def test_a_ceiling_holds(weights: Path, tmp_path: Path, max_mb: float) -> None:
    home = tmp_path / "model"
    model = made(weights, home, size=None, max_mb=max_mb, validation=2)
    for classes in ((0, 1), (2, 3), (4, 5)):
        teach(model, *classes)
    store = ModelStore.open(home)
    for number in store.numbers():
        assert store.document(number).num_bytes <= 1e6 * max_mb
    assert len(model.method.memory) > 0


def test_it_is_exported_with_its_enlargement(weights: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    model = made(weights, tmp_path / "model", validation=2)
    teach(model, 0, 1)
    done = model.export(tmp_path / "model.onnx")
    assert done.checked_on == "held-out images"
    assert done.max_difference < 1e-4


def test_the_command_freezes_by_default(weights: Path, tmp_path: Path) -> None:
    images, home = folder(tmp_path / "images", "cat", "dog"), tmp_path / "model"
    requested = [
        f"backbone.name={MODEL}", f"backbone.weights={weights}", "backbone.input_size=32",
        "data.image_size=16", "method.update.epochs=2", "engine.device=cpu",
    ]  # fmt: skip
    call = LearnCall(model=home, images=images, overrides=requested, dry_run=True)
    assert call.wanted.budget.passes is None
    assert call.examine().classes.keys() == {"cat", "dog"}
    result = learn(home, images, requested)
    assert not result.document.settings.method.traits.trains_backbone
    assert result.document.settings.backbone.train == "frozen"
    more = folder(tmp_path / "more", "ant", "bee")
    assert learn(home, more).in_use == 2


def test_training_all_of_it_lowers_the_rates() -> None:
    given = ["backbone.name=timm/test_efficientnet", "backbone.weights=x.safetensors"]
    plain, full = (
        new_settings("folder", [*given, *more])
        for more in ((), ("backbone.train=all", "method.grow.lr=0.05"))
    )
    assert plain.backbone.input_size == full.backbone.input_size == "model"
    assert plain.method.name == "probe"
    assert full.method.name == "grace"
    recipes = dict(full.method)
    assert recipes["base"].lr == pytest.approx(0.01)
    assert recipes["grow"].lr == pytest.approx(0.05)


def test_random_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraceError, match="would be random"):
        learn(tmp_path / "model", tmp_path, ["method=probe"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["backbone.train=frozen"], "cannot learn with"),
        (["method=probe", "backbone.train=all"], "cannot learn with"),
        (
            ["method=memo", "backbone.train=last-stages"],
            "cannot learn with",
        ),
        (["backbone.mean=[0.5]"], "one number for each channel"),
    ],
)
def test_what_contradicts_the_method_is_refused(override: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_experiment("digits", override)


def test_images_larger_than_the_backbones_are_refused(weights: Path, tmp_path: Path) -> None:
    settings = tiny_streams.settings(
        Probe.Settings(), backbone=BackboneSettings(name=MODEL, input_size=8)
    )
    with pytest.raises(GraceError, match=r"larger than backbone\.input_size 8"):
        Learner.create(settings, shape=(3, 16, 16))
    with pytest.raises(GraceError, match="squares"):
        Learner.create(settings, shape=(3, 8, 4))
