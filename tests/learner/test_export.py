"""An exported file predicts what its learner predicts, says how it is used, and names no folder."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import grace
from grace.base.randomness import generator
from grace.data.decoders import read_pixels
from grace.data.memory import nearest_mean
from grace.learner import export as exporting
from grace.learner.document import Predictor
from grace.learner.export import Preprocessing, check_onnx, export_onnx, load_onnx
from grace.learner.learner import Learner
from grace.learner.prediction import cutoff
from grace.methods.finetune import Finetune
from grace.methods.icarl import ICaRL
from grace.methods.memo import Memo
from grace.methods.replay import Replay
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet, TorchvisionResNet
from grace.nn.timm_backbone import TimmBackbone
from grace.settings.experiment import MemorySettings
from support.quick_exports import operators_once as operators_once
from support.saved_learners import saved as saved
from support.tiny_streams import class_names, labelled, learner, pictures, recipe

pytestmark = pytest.mark.usefixtures("tiny_backbones")

ROOT = Path(__file__).parents[2]
NAMES = ["cat", "dog", "Käse", "1", ""]
MEANS, STDS = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)

Score = Callable[[Tensor], Tensor]


def cifar(seed: int, channels: int = 3) -> CifarResNet:
    return with_lived_statistics(CifarResNet(8, channels, generator(seed, "test")), channels)


def with_lived_statistics(backbone: nn.Module, channels: int = 3) -> nn.Module:
    """Scales and statistics of batch norm that a wrong folding would show."""
    torch.manual_seed(0)
    for part in backbone.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.3)
    backbone.train()
    with torch.no_grad():
        backbone(torch.randn(8, channels, 16, 16))
    return backbone.eval()


def head(in_features: int) -> LinearHead:
    return LinearHead(in_features, len(NAMES), generator(0, "head"))


def export(
    path: Path,
    score: Score,
    backbones: Sequence[nn.Module],
    channels: int = 3,
    masked: Sequence[int] = (),
) -> None:
    made = Preprocessing((channels, 16, 16), MEANS[:channels], STDS[:channels])
    export_onnx(score, backbones, made, NAMES, list(masked), path, method="grace", version=3)


def some_images(num: int, channels: int = 3) -> Tensor:
    """Images of few large patches, so that they differ in more than noise."""
    patches = 255 * torch.rand(num, channels, 3, 3, generator=generator(1))
    return nn.functional.interpolate(patches, (16, 16)).to(torch.uint8)


@torch.no_grad()
def learners_logits(score: Score, backbones: Sequence[nn.Module], images: Tensor) -> Tensor:
    channels = images.shape[1]
    mean, std = (torch.tensor(own[:channels])[:, None, None] for own in (MEANS, STDS))
    normalised = (images / 255 - mean) / std
    return score(torch.cat([backbone(normalised) for backbone in backbones], dim=1))


def answers(path: Path, images: Tensor) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: list[np.ndarray[Any, Any]] = session.run(None, {"images": (images / 255).numpy()})
    return found


def about(path: Path) -> dict[str, str]:
    return {own.key: own.value for own in onnx.load(path).metadata_props}


def means_score() -> Score:
    """A score as methods give it: no module, with class means that it closes over."""
    means = nn.functional.normalize(torch.rand(len(NAMES), 64, generator=generator(0)), dim=1)
    return lambda features: nearest_mean(features.float(), means)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LinearHead, CifarResNet]:
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    masked, backbone = head(64), cifar(0)
    # Centred logits, so that not all images are of one class.
    masked.bias.data -= learners_logits(masked, [backbone], some_images(32)).mean(dim=0)
    masked.mask([1])
    export(path, masked, [backbone], masked=[1])
    return path, masked, backbone


@pytest.mark.parametrize(
    ("build", "channels"),
    [
        (lambda: (head(64), [cifar(0, 1)]), 1),
        (lambda: (means_score(), [cifar(0)]), 3),
        (
            lambda: (
                head(512),
                [with_lived_statistics(TorchvisionResNet("resnet18", "conv3", 3, 0))],
            ),
            3,
        ),
        (lambda: (head(512), [with_lived_statistics(TimmBackbone("resnet10t", 3, 0))]), 3),
    ],
    ids=["grey", "nearest mean", "resnet18", "timm"],
)
def test_the_file_gives_the_learners_logits_for_any_number_of_images(
    build: Callable[[], tuple[Score, list[nn.Module]]], channels: int, tmp_path: Path
) -> None:
    score, backbones = build()
    path = tmp_path / "model.onnx"
    export(path, score, backbones, channels)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]
    images = some_images(7, channels)
    expected = learners_logits(score, backbones, images)
    for num in (1, 3, 7):
        found = answers(path, images[:num])[0]
        assert found == pytest.approx(expected[:num].numpy(), rel=0, abs=1e-4)
    assert check_onnx(path, images, expected) < 1e-4


def test_a_network_of_two_backbones_is_exported_in_their_order(tmp_path: Path) -> None:
    network = ExpandableNetwork([cifar(0), cifar(1)], head(128)).eval()
    network.to(memory_format=torch.channels_last)  # as the engine lays networks out
    path = tmp_path / "model.onnx"
    export(path, network.head, list(network.backbones))
    images = some_images(4)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEANS, STDS))
    with torch.no_grad():
        logits = network((images / 255 - mean) / std)
    assert check_onnx(path, images, logits) < 1e-4


def test_exporting_leaves_the_learner_as_it_was(tmp_path: Path) -> None:
    score, backbone = head(64), cifar(0).train()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    state = torch.get_rng_state()
    export(tmp_path / "model.onnx", score, [backbone])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert backbone.training
    assert all(part.requires_grad for part in (*backbone.parameters(), *score.parameters()))


def test_the_metadata_tells_all_that_a_program_must_know(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    found = about(exported[0])
    worded = ("fit", "grace_version", "model_version", "method", "unknown_score")
    words = [found.pop(key) for key in worded]
    assert words == ["crop", grace.__version__, "3", "grace", "energy"]
    assert {key: json.loads(value) for key, value in found.items()} == {
        "class_names": NAMES,
        "masked_classes": [1],
        "input_size": [3, 16, 16],
        "mean": list(MEANS),
        "std": list(STDS),
        "unknown_below": {},
        "familiarities": [],
    }
    logits = answers(exported[0], some_images(5))[0]
    assert logits[:, 1].tolist() == [-1e4] * 5
    assert np.abs(np.delete(logits, 1, axis=1)).max() < 100


def test_the_file_is_one_graph_without_batch_norm_or_traces_of_the_machine(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    path, _, backbone = exported
    kinds = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
    assert "BatchNormalization" not in kinds
    assert kinds.count("Conv") == 7  # ResNet-8 has a stem and 6 convolutions in blocks.
    content = path.read_bytes()
    assert not [place for place in (str(ROOT), "site-packages", ".py") if place.encode() in content]
    weights = sum(value.nbytes for value in backbone.parameters())
    assert weights < len(content) < 1.2 * weights


def test_a_file_that_predicts_otherwise_is_refused_with_the_difference(
    exported: tuple[Path, LinearHead, CifarResNet],
) -> None:
    path, score, backbone = exported
    images = some_images(70)  # in batches of 1, 64 and 5
    logits = learners_logits(score, [backbone], images)
    for place in (0, 64, 65, 69):
        off = logits.clone()
        off[place, 2] += 0.002
        with pytest.raises(ValueError, match=r"differ by up to 0\.002 .* and 0 of 70 images get"):
            check_onnx(path, images, off)
    with pytest.raises(ValueError, match="and 70 of 70 images get another class"):
        check_onnx(path, images, logits.roll(1, dims=1))
    off[4, 2] = float("nan")
    with pytest.raises(ValueError, match="differ by up to nan"):
        check_onnx(path, images, off)


def test_large_logits_may_differ_by_the_rounding_of_their_size(tmp_path: Path) -> None:
    def score(features: Tensor) -> Tensor:
        logits = 1000 * features[:, :5]
        return torch.cat([logits[:, :4], torch.full_like(logits[:, 4:], -1e4)], dim=1)

    path, images = tmp_path / "model.onnx", some_images(2)
    # of 1000 (1 − 0.4) / 0.2 = 3000 a hundred-thousandth is 0.03, whatever the hidden class has
    images[0] = 255
    export(path, score, [nn.Flatten()])
    logits = learners_logits(score, [nn.Flatten()], images)
    assert logits[0].tolist() == pytest.approx([3000, 3000, 3000, 3000, -10000])
    logits[0, 1] -= 0.02
    assert check_onnx(path, images, logits) == pytest.approx(0.02, abs=1e-3)
    logits[0, 1] -= 0.02
    with pytest.raises(ValueError, match=r"differ by up to 0\.04"):
        check_onnx(path, images, logits)


@pytest.mark.parametrize("library", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_extra_is_named(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=r"pip install 'grace-cil\[onnx\]'"):
        export(tmp_path / "model.onnx", head(64), [cifar(0)])


class Undecided(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        features = images.flatten(1)
        return features if features.sum() > 0 else -features


def test_a_model_that_cannot_be_exported_is_refused_without_names_of_folders(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=r"torch cannot export this model to ONNX \(\w+\)") as said:
        export(tmp_path / "model.onnx", head(768), [Undecided().eval()])
    assert not [word for word in ("\n", "/", "\\", ".py") if word in str(said.value)]
    assert list(tmp_path.iterdir()) == []
    # 2³¹ bytes of weights, none of them allocated
    backbone = nn.Linear(2**14, 2**15, bias=False, device="meta")
    with pytest.raises(ValueError, match=r"holds 2 GiB, these weights take 2\.0 GiB"):
        export(tmp_path / "model.onnx", nn.Identity(), [backbone])


class TestOfALearner:
    """What ``Learner.export`` writes and checks."""

    def test_the_file_tells_what_the_learner_tells(self, saved: Path, tmp_path: Path) -> None:
        pets, path = Learner.load(saved), tmp_path / "pets.onnx"
        exported = pets.export(path)
        assert (exported.num_images, exported.checked_on) == (12, "held-out images")
        assert sorted(own.name for own in path.parent.iterdir()) == ["pets.labels.txt", "pets.onnx"]
        images = torch.cat([pictures(index, 3, seed=5) for index in range(5)])
        logits, probabilities, familiarity = answers(path, images)
        assert probabilities == pytest.approx(pets.predict_proba(images).numpy(), abs=1e-5)
        assert familiarity == pytest.approx(pets.recognise(images)[1].numpy(), abs=1e-4)
        assert logits == pytest.approx(pets.decision_function(images).numpy(), abs=1e-4)
        found = about(path)
        assert json.loads(found["class_names"]) == ["apple", "Käse", "cat", "dog", "fox"]
        assert json.loads(found["masked_classes"]) == [2]
        assert (found["model_version"], found["method"]) == ("5", "grace")
        assert json.loads(found["mean"]) == pytest.approx([0.485, 0.456, 0.406], rel=1e-7)

    @pytest.mark.parametrize(
        "method",
        [
            ICaRL.Settings(base=recipe(), update=recipe()),
            Memo.Settings(base=recipe(), grow=recipe()),
        ],
        ids=["icarl", "memo"],
    )
    def test_means_and_trunks_are_exported_too(self, method: Any, tmp_path: Path) -> None:
        made = learner(method, memory=MemorySettings(size=12, validation=2))
        for counts in ({0: 8, 1: 8, 2: 8}, {3: 8}):
            data = labelled(counts)
            made.update(data.images, class_names(data))
        made.forget("class 1")
        assert made.export(tmp_path / "made.onnx").num_images == 3

    def test_it_is_checked_on_exemplars_or_noise_where_nothing_is_held_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked: list[tuple[Tensor, Tensor]] = []
        monkeypatch.setattr(exporting, "check_onnx", lambda *own: checked.append(own[1:]) or 0.0)
        replay = learner(
            Replay.Settings(base=recipe(), update=recipe()), memory=MemorySettings(size=600)
        )
        data = labelled({0: 300, 1: 300})
        replay.update(data.images, class_names(data))
        assert replay.export(tmp_path / "replay.onnx").checked_on == "exemplars"
        images, logits = checked[-1]
        # Every third of 600 exemplars.
        kept = [
            replay.method.memory.of_class(own).gather(torch.arange(0, 300, 3)) for own in (0, 1)
        ]
        assert torch.equal(images, torch.cat(kept))
        torch.testing.assert_close(logits, replay.decision_function(images))
        finetune = learner(Finetune.Settings(base=recipe(), update=recipe()))
        with pytest.raises(ValueError, match="nothing has been learnt yet"):
            finetune.export(tmp_path / "none.onnx")
        finetune.update(data.images, class_names(data))
        assert finetune.export(tmp_path / "finetune.onnx").checked_on == "images of noise"
        assert (checked[-1][0].shape, checked[-1][0].dtype) == ((32, 3, 8, 8), torch.uint8)

    def test_files_are_replaced_on_request_only_by_one_that_passes_its_check(
        self, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pets, path, labels = (
            Learner.load(saved), tmp_path / "pets.onnx", tmp_path / "pets.labels.txt"
        )  # fmt: skip
        with pytest.raises(ValueError, match=r"no folder '.*nowhere' to export into"):
            pets.export(tmp_path / "nowhere" / "pets.onnx")
        for taken in (labels, path):
            taken.write_text("old")
            with pytest.raises(ValueError, match=rf"{taken.name}' exists already"):
                pets.export(path)

        def refuse(*given: object) -> float:
            raise ValueError("it does not predict the same")

        with monkeypatch.context() as patch:
            patch.setattr(exporting, "check_onnx", refuse)
            with pytest.raises(ValueError, match="does not predict the same"):
                pets.export(path, replace=True)
        assert [own.read_text() for own in tmp_path.iterdir()] == ["old", "old"]
        pets.export(path, replace=True)
        assert about(path)["method"] == "grace"
        assert labels.read_text() == "".join(f"{name}\n" for name in pets.class_names)

    def test_the_chosen_predictor_is_exported_at_its_temperature(self, tmp_path: Path) -> None:
        made = learner(
            Replay.Settings(base=recipe(2), update=recipe()),
            memory=MemorySettings(size=40, validation=10),
        )
        for counts in ({0: 30, 1: 30}, {2: 30}):
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
            found = about(path)
            assert json.loads(found["unknown_below"]) == {"0.1": cutoff(made.familiarities, 0.1)}
            assert json.loads(found["familiarities"]) == made.familiarities.tolist()


def save_pictures(folder: Path) -> list[Path]:
    """A wide, a high, a square and a partly transparent picture, with structure at every scale."""
    rng = np.random.default_rng(0)
    shapes = [(37, 61, 3), (50, 23, 3), (16, 16, 3), (40, 44, 4)]
    paths = [folder / f"picture {number}.png" for number in range(len(shapes))]
    for path, (height, width, bands) in zip(paths, shapes, strict=True):
        coarse = rng.integers(0, 256, (3, 3, bands), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture.save(path)
    return paths


def test_the_example_predicts_without_torch_and_grace(
    exported: tuple[Path, LinearHead, CifarResNet], tmp_path: Path
) -> None:
    model, score, backbone = exported
    paths = save_pictures(tmp_path)
    # None in sys.modules makes every import of that name fail.
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['grace'] = None\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = ROOT / "examples" / "predict_with_onnx.py"
    command = [sys.executable, "-W", "error", "-c", code, str(script), str(model), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pixels = torch.stack([torch.from_numpy(read_pixels(path, 3, 16)) for path in paths])
    logits = learners_logits(score, [backbone], pixels.permute(0, 3, 1, 2))
    shares, classes = logits.softmax(dim=1).max(dim=1)
    assert len(classes.unique()) > 1
    assert done.stdout.splitlines() == [
        f"{path}: {NAMES[int(index)]} {float(share):.1%}"
        for path, index, share in zip(paths, classes, shares, strict=True)
    ]
