"""A learner exports its primary predictor, checked on what it holds."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from grace.learner import exporting
from grace.learner.export import OnnxCheck, load_onnx
from grace.learner.exporting import Exported
from grace.learner.learner import Learner
from grace.learner.predictor import Predictor
from grace.learner.reduced_precision import Agreement, Precision, agreement
from grace.learner.unknown import cutoff
from grace.settings.experiment import MemorySettings
from grace.settings.methods import (
    BaseMethodSettings,
    FinetuneSettings,
    ICaRLSettings,
    MemoSettings,
    ReplaySettings,
)
from support.quick_exports import operators_once as operators_once
from support.saved_learners import saved as saved
from support.tiny_streams import class_names, labelled, learner, pictures, recipe

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Files that hold nothing instead of networks; the images and logits they are checked with."""
    checked: list[tuple[Tensor, Tensor]] = []

    def check(path: Path, images: Tensor, logits: Tensor) -> OnnxCheck:
        assert path.exists()
        checked.append((images, logits))
        return OnnxCheck(len(images), 0.0, len(images))

    monkeypatch.setattr(exporting, "export_onnx", lambda *a, **k: a[5].write_text("new"))
    monkeypatch.setattr(exporting, "check_onnx", check)
    return checked


@pytest.fixture(scope="module")
def exact(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Exported, Path]:
    """The saved learner as a file of full precision."""
    path = tmp_path_factory.mktemp("exact") / "pets.onnx"
    return Learner.load(saved).export(path), path


def test_the_file_tells_what_the_learner_tells(saved: Path, exact: tuple[Exported, Path]) -> None:
    pets = Learner.load(saved)
    exported, path = exact
    assert (exported.check.num_images, exported.checked_on) == (12, "held-out images")
    assert exported.check.same_argmax == 12
    assert sorted(own.name for own in path.parent.iterdir()) == ["pets.labels.txt", "pets.onnx"]
    images = torch.cat([pictures(index, 3, seed=5) for index in range(5)])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {"images": (images / 255).numpy()})
    assert [own.name for own in session.get_outputs()] == [
        "logits", "probabilities", "familiarity"
    ]  # fmt: skip
    logits, probabilities, familiarity = found
    assert probabilities == pytest.approx(pets.predict_proba(images).numpy(), abs=1e-5)
    assert familiarity == pytest.approx(pets.recognise(images)[1].numpy(), abs=1e-4)
    assert logits == pytest.approx(pets.decision_function(images).numpy(), abs=1e-4)
    names = [pets.class_names[index] for index in logits.argmax(axis=1)]
    assert names == pets.predict(images)
    about = {own.key: own.value for own in onnx.load(path).metadata_props}
    assert json.loads(about["class_names"]) == ["apple", "Käse", "cat", "dog", "fox"]
    assert json.loads(about["masked_classes"]) == [2]
    assert (about["model_version"], about["method"]) == ("5", "grace")
    assert json.loads(about["mean"]) == pytest.approx([0.485, 0.456, 0.406], rel=1e-7)


@pytest.mark.parametrize(
    "method",
    [ICaRLSettings(base=recipe(), update=recipe()), MemoSettings(base=recipe(), grow=recipe())],
    ids=["icarl", "memo"],
)
def test_means_and_trunks_are_exported_too(method: BaseMethodSettings, tmp_path: Path) -> None:
    made = learner(method, memory=MemorySettings(size=12, validation=2))
    for counts in ({0: 8, 1: 8, 2: 8}, {3: 8}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    made.forget("class 1")
    exported = made.export(tmp_path / "made.onnx")
    assert (exported.check.num_images, exported.check.same_argmax) == (3, 3)


def test_it_is_checked_on_exemplars_or_noise_where_nothing_is_held_out(
    no_export: list[tuple[Tensor, Tensor]], tmp_path: Path
) -> None:
    data = labelled({0: 8, 1: 8})
    replay = learner(ReplaySettings(base=recipe(), update=recipe()), memory=MemorySettings(size=6))
    replay.update(data.images, class_names(data))
    assert replay.export(tmp_path / "replay.onnx").checked_on == "exemplars"
    images, logits = no_export[-1]
    kept = [replay.method.memory.of_class(index).gather(torch.arange(3)) for index in (0, 1)]
    assert torch.equal(images, torch.cat(kept))
    torch.testing.assert_close(logits, replay.decision_function(images))
    finetune = learner(FinetuneSettings(base=recipe(), update=recipe()))
    finetune.update(data.images, class_names(data))
    assert finetune.export(tmp_path / "finetune.onnx").checked_on == "images of noise"
    assert no_export[-1][0].shape == (32, 3, 8, 8)
    assert no_export[-1][0].dtype == torch.uint8


def test_of_many_images_some_of_every_class_are_taken(
    no_export: list[tuple[Tensor, Tensor]], tmp_path: Path
) -> None:
    made = learner(ReplaySettings(base=recipe(), update=recipe()), memory=MemorySettings(size=600))
    data = labelled({0: 300, 1: 300})
    made.update(data.images, class_names(data))
    made.export(tmp_path / "many.onnx")
    images, _ = no_export[-1]
    # Every third of 600 exemplars.
    assert len(images) == 200
    second = made.method.memory.of_class(1).gather(torch.arange(0, 300, 3))
    assert torch.equal(images[100:], second)


def test_a_file_that_is_there_is_replaced_only_on_request(
    no_export: list[tuple[Tensor, Tensor]], saved: Path, tmp_path: Path
) -> None:
    pets, path = Learner.load(saved), tmp_path / "pets.onnx"
    path.write_text("old")
    with pytest.raises(ValueError, match="exists already"):
        pets.export(path)
    assert path.read_text() == "old"
    path.rename(labels := tmp_path / "pets.labels.txt")
    with pytest.raises(ValueError, match=r"pets\.labels\.txt' exists already"):
        pets.export(path)
    assert labels.read_text() == "old"
    pets.export(path, replace=True)
    assert path.read_text() == "new"
    assert labels.read_text() == "".join(f"{name}\n" for name in pets.class_names)


def test_what_fails_its_check_is_removed_and_the_old_file_stays(
    no_export: list[tuple[Tensor, Tensor]],
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path, images: Tensor, logits: Tensor) -> OnnxCheck:
        raise ValueError("it does not predict the same")

    monkeypatch.setattr(exporting, "check_onnx", refuse)
    pets, path = Learner.load(saved), tmp_path / "pets.onnx"
    with pytest.raises(ValueError, match="does not predict the same"):
        pets.export(path)
    assert list(tmp_path.iterdir()) == []
    path.write_text("old")
    with pytest.raises(ValueError, match="does not predict the same"):
        pets.export(path, replace=True)
    assert [own.read_text() for own in tmp_path.iterdir()] == ["old"]


def test_before_the_first_update_there_is_nothing_to_export(tmp_path: Path) -> None:
    made = learner(FinetuneSettings(base=recipe(), update=recipe()))
    with pytest.raises(ValueError, match="nothing has been learnt yet"):
        made.export(tmp_path / "none.onnx")


def test_the_chosen_predictor_is_exported_at_its_temperature(tmp_path: Path) -> None:
    made = learner(
        ReplaySettings(base=recipe(2), update=recipe()),
        memory=MemorySettings(size=12, validation=2),
    )
    for counts in ({0: 12, 1: 12}, {2: 12}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    made.forget("class 1")
    images = torch.cat([pictures(index, 3, seed=5) for index in range(3)])
    for chosen in (
        Predictor(classifier="nearest_mean", temperature=0.2),
        Predictor(classifier="linear", prior=(4, 8, 2), temperature=3.0),
    ):
        made.model.state.predictor = chosen
        path = tmp_path / f"{chosen.classifier}.onnx"
        made.export(path)
        torch.testing.assert_close(
            load_onnx(path)(images), made.decision_function(images), atol=1e-4, rtol=1e-5
        )


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_lower_precision_says_what_it_costs(
    saved: Path, exact: tuple[Exported, Path], tmp_path: Path, precision: Precision
) -> None:
    pets = Learner.load(saved)
    small = tmp_path / "small.onnx"
    exported = pets.export(small, precision=precision)
    assert small.stat().st_size < exact[1].stat().st_size
    held_out = pets.held_out.data()
    pixels = held_out.images.gather(torch.arange(12))
    session = onnxruntime.InferenceSession(small, providers=["CPUExecutionProvider"])
    logits, probabilities, familiarity = session.run(None, {"images": (pixels / 255).numpy()})
    assert logits.dtype == probabilities.dtype == familiarity.dtype == np.float32
    found, expected = logits.argmax(axis=1).tolist(), pets.decision_function(pixels).argmax(dim=1)
    assert exported.agreement.same_class == np.mean(found == expected.numpy()) > 0.5
    labels = held_out.labels.numpy()
    assert exported.agreement.accuracy == (
        np.mean(expected.numpy() == labels), np.mean(found == labels)
    )  # fmt: skip
    about = {own.key: own.value for own in onnx.load(small).metadata_props}
    assert about["precision"] == precision
    assert json.loads(about["class_names"]) == pets.class_names


@pytest.mark.parametrize(
    ("lost", "chance", "is_worse"), [(4, 2**-4, False), (5, 2**-5, True)], ids=["four", "five"]
)
def test_a_loss_is_told_when_chance_cannot_be_the_reason(
    lost: int, chance: float, is_worse: bool
) -> None:
    exact = torch.eye(2)[[0] * 9 + [1]]
    reduced = torch.eye(2)[[1] * lost + [0] * (9 - lost) + [1]]
    found = agreement(exact, reduced, torch.tensor([0] * 10))
    assert found == Agreement(1 - lost / 10, (0.9, pytest.approx(0.9 - lost / 10)), chance)
    assert found.is_worse is is_worse
    assert not agreement(exact, reduced, None).is_worse


def test_the_limit_of_unknown_images_is_in_the_file(tmp_path: Path) -> None:
    made = learner(
        FinetuneSettings(base=recipe(), update=recipe()),
        memory=MemorySettings(size=0, validation=10),
    )
    data = labelled({0: 50, 1: 50})
    made.update(data.images, class_names(data))
    made.export(tmp_path / "made.onnx")
    about = {own.key: own.value for own in onnx.load(tmp_path / "made.onnx").metadata_props}
    assert about["unknown_score"] == "energy"
    assert json.loads(about["unknown_below"]) == {
        "0.05": cutoff(made.familiarities, 0.05), "0.1": cutoff(made.familiarities, 0.1)
    }  # fmt: skip
