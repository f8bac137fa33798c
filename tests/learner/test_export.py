"""An exported file answers as its learner does, without torch; a stranger's can do no harm."""

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import Tensor, nn

import grace
from grace.base.errors import DamagedError, GraceError
from grace.learner import export as exporting
from grace.learner import exported
from grace.learner.export import Graph, check_onnx, write_onnx
from grace.learner.exported import About, open_exported
from grace.learner.learner import Learner
from grace.learner.prediction import cutoff, predict_files
from grace.methods.classifier import Classifier
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.commands import call
from support.quick_exports import operators_once as operators_once
from support.tiny_streams import class_names, labelled, learner, pictures, recipe

pytestmark = pytest.mark.usefixtures("tiny_backbones")

ROOT = Path(__file__).parents[2]
IMAGES = torch.cat([pictures(index, 3, seed=5) for index in range(4)])
ABOUT = About(
    class_names=("a", "b", "c"), masked_classes=(), input_size=(3, 4, 4), fit="crop",
    familiarities=(),
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> tuple[Learner, Path]:
    """A learner with a forgotten class, a temperature and limits for unknown images; its export."""
    made = learner(
        Replay.Settings(base=recipe(2), update=recipe()),
        memory=MemorySettings(size=40, validation=10),
    )
    data = labelled({0: 60, 1: 60, 2: 60, 3: 60})
    made.update(data.images, class_names(data))
    made.forget("class 1")
    made.model.state.temperature = 0.5
    path = tmp_path_factory.mktemp("made") / "made.onnx"
    state = {name: value.clone() for name, value in made.method.network.state_dict().items()}
    done = made.export(path)
    assert (done.num_images, done.checked_on) == (30, "held-out images")
    assert all(torch.equal(own, state[k]) for k, own in made.method.network.state_dict().items())
    assert [own.name for own in path.parent.iterdir()] == ["made.onnx"]
    return made, path


def answers(path: Path, images: Tensor) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: list[np.ndarray[Any, Any]] = session.run(None, {"images": (images / 255).numpy()})
    return found


def about(path: Path) -> dict[str, Any]:
    (own,) = onnx.load(path).metadata_props
    assert own.key == "grace"
    return dict(json.loads(own.value))


class TestTheFile:
    def test_it_tells_what_the_learner_tells_of_any_number_of_images(
        self, made: tuple[Learner, Path]
    ) -> None:
        expected = made[0].decision_function(IMAGES)
        assert expected[:, 1].tolist() == [-1e4] * 12
        for num in (1, 5, 12):
            logits, shares, familiarity = answers(made[1], IMAGES[:num])
            assert logits == pytest.approx(expected[:num].numpy(), abs=1e-4)
            assert shares == pytest.approx(expected[:num].softmax(dim=1).numpy(), abs=1e-5)
            known = made[0].recognise(IMAGES[:num])[1]
            assert familiarity == pytest.approx(known.numpy(), abs=1e-3)

    def test_it_holds_all_that_a_program_must_know_and_nothing_of_this_machine(
        self, made: tuple[Learner, Path]
    ) -> None:
        kinds = [node.op_type for node in onnx.load(made[1]).graph.node]
        assert "BatchNormalization" not in kinds
        assert kinds.count("Conv") == 7  # ResNet-8 has a stem and 6 convolutions in blocks.
        content = made[1].read_bytes()
        assert not [own for own in (str(ROOT), "site-packages", ".py") if own.encode() in content]
        known = made[0].familiarities
        assert "means" in made[0].recogniser.tensors
        assert about(made[1]) == {
            "class_names": [f"class {index}" for index in range(4)],
            "masked_classes": [1],
            "input_size": [3, 8, 8],
            "fit": "crop",
            "familiarities": known.tolist(),
            # Of 30 images 0.05 · 31 ≥ 1.
            "unknown_below": {"0.05": cutoff(known, 0.05), "0.1": cutoff(known, 0.1)},
            "method": "replay",
            "model_version": 0,
            "grace_version": grace.__version__,
        }

    def test_one_that_predicts_otherwise_is_refused_with_the_difference(
        self, made: tuple[Learner, Path]
    ) -> None:
        images = torch.cat([IMAGES] * 6)[:70]  # in batches of 1, 64 and 5
        logits = made[0].decision_function(images)
        assert check_onnx(made[1], images, logits) < 1e-4
        for place in (0, 64, 65, 69):
            off = logits.clone()
            off[place, 2] += 0.002
            with pytest.raises(GraceError, match=r"up to 0\.002 .* and 0 of 70 images get"):
                check_onnx(made[1], images, off)
        with pytest.raises(GraceError, match="and 70 of 70 images get another class"):
            check_onnx(made[1], images, -logits)
        off[4, 2] = float("nan")
        with pytest.raises(GraceError, match="differ by up to nan"):
            check_onnx(made[1], images, off)


class Undecided(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        features = images.flatten(1)
        return features if features.sum() > 0 else -features


class TestExporting:
    def test_only_a_file_that_passes_its_check_replaces_another(
        self, made: tuple[Learner, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "pets.onnx"
        path.write_text("old")
        # What is written is another learner's file.
        monkeypatch.setattr(exporting, "write_onnx", lambda *own: shutil.copy(made[1], own[2]))
        with monkeypatch.context() as patch:
            patch.setattr(made[0].model.state, "temperature", 1.0)
            with pytest.raises(GraceError, match="does not predict what its learner predicts"):
                made[0].export(path, replace=True)
        assert [own.read_text() for own in tmp_path.iterdir()] == ["old"]
        made[0].export(path, replace=True)
        assert [own.read_bytes() for own in tmp_path.iterdir()] == [made[1].read_bytes()]

    def test_what_cannot_be_exported_is_refused_without_names_of_folders(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refusal(backbone: nn.Module) -> str:
            graph = Graph(Classifier([backbone], nn.Identity()), (0.4,) * 3, (0.2,) * 3)
            with pytest.raises(GraceError) as said:
                write_onnx(graph, ABOUT, tmp_path / "model.onnx")
            assert list(tmp_path.iterdir()) == []
            return str(said.value)

        said = refusal(Undecided())
        assert said.startswith("torch cannot export this model to ONNX (")
        assert not [word for word in ("\n", "/", "\\", ".py") if word in said]
        # 2³¹ bytes of weights, none of them allocated
        large = nn.Linear(2**14, 2**15, bias=False, device="meta")
        assert "holds 2 GiB, these weights take 2.0 GiB" in refusal(large)
        for library in ("onnx", "onnxscript", "onnxruntime"):
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, library, None)
                assert "pip install 'grace-cil[onnx]'" in refusal(nn.Flatten())


def files(folder: Path) -> list[Path]:
    """Pictures of other sizes."""
    paths = [folder / f"{number}.png" for number in range(len(IMAGES))]
    for path, image in zip(paths, IMAGES, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((9, 13)).save(path)
    return paths


def test_it_answers_as_its_learner_does(made: tuple[Learner, Path], tmp_path: Path) -> None:
    paths = [*files(tmp_path), tmp_path / "nothing.png"]
    both = (made[0].answerer(), open_exported(made[1]))
    one, other = both
    assert list(one.familiarities) == pytest.approx(list(other.familiarities))
    expected, found = (list(predict_files(own, paths, top=9)) for own in both)
    assert len({told.guesses[0].index for told in expected[:-1]}) > 1
    for told, right in zip(found, expected, strict=True):
        assert [own.index for own in told.guesses] == [own.index for own in right.guesses]
        assert [own.class_name for own in told.guesses] == [own.class_name for own in right.guesses]
        assert 1 not in [own.index for own in told.guesses]
        shares = [own.probability for own in right.guesses]
        assert [own.probability for own in told.guesses] == pytest.approx(shares, abs=1e-5)
        assert told.problem == right.problem
    assert expected[-1].problem is not None


def test_the_command_imports_no_torch(made: tuple[Learner, Path], tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('torch', 'onnx', 'scipy', 'grace.settings.experiment'):\n"
        "    sys.modules[name] = None\nfrom grace.cli import main\nmain()\n"
    )
    (photo, *_) = files(tmp_path)
    words = ["predict", str(made[1]), str(photo), "--unknown", "--false-alarms", "20", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["class"] in made[0].class_names
    assert "at most 20 % of images of learnt classes" in done.stderr


def test_what_cannot_be_asked_is_one_line(
    made: tuple[Learner, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photo, *_) = files(tmp_path)
    result = call("predict", made[1], photo, "--version", 1)
    assert result.stderr == "error: an exported file holds one version: leave --version out\n"
    result = call("predict", photo, photo)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: '{photo}' is neither a learner nor a file of 'grace export'\n"
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(GraceError, match=r"needs onnxruntime: pip install 'grace-cil\[onnx\]'"):
        open_exported(made[1])


def changed(path: Path, change: Callable[[Any], None]) -> bytes:
    model = onnx.load(path)
    change(model)
    return bytes(model.SerializeToString())


def said(key: str, value: str) -> Callable[[Any], None]:
    """Change what the metadata say."""

    def change(model: Any) -> None:
        own = model.metadata_props[0]
        old = json.dumps(json.loads(own.value)[key], separators=(",", ":"))
        assert old in own.value
        own.value = own.value.replace(f'"{key}":{old}', f'"{key}":{value}')

    return change


def elsewhere(model: Any) -> None:
    """Let a tensor lie in another file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/dev/zero")


def before(*nodes: Any) -> Callable[[Any], None]:
    """Add operators, the last of which makes the probabilities."""

    def change(model: Any) -> None:
        for own in model.graph.node:
            own.output[:] = ["was" if name == "probabilities" else name for name in own.output]
        model.graph.node.extend(nodes)

    return change


def numbers(name: str, *values: int) -> Any:
    return helper.make_node(
        "Constant", [], [name], value=numpy_helper.from_array(np.array(values, np.int64))
    )


def made_by(name: str, domain: str = "", of: str = "was", **given: Any) -> Callable[[Any], None]:
    """Let another operator make the probabilities."""
    return before(helper.make_node(name, [of], ["probabilities"], domain=domain, **given))


def many_entries(model: Any) -> None:
    """Add more entries than are read."""
    model.metadata_props.extend([onnx.StringStringEntryProto(key="", value="")] * 110_000)


BRANCHES = {
    "then_branch": helper.make_graph([], "a", [], []),
    "else_branch": helper.make_graph([], "b", [], []),
}
TERABYTE = (
    numbers("size", 2**20, 2**18),
    helper.make_node("ConstantOfShape", ["size"], ["large"]),
    helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
    helper.make_node("Mul", ["was", "sum"], ["probabilities"]),
)
HOSTILE: dict[str, Callable[[Any], None]] = {
    "a tensor in another file": elsewhere,
    "a graph inside an operator": made_by("If", **BRANCHES),
    "a function": lambda model: model.functions.add(name="f"),
    "an operator of onnxruntime": made_by("Gelu", "com.microsoft"),
    "an operator of another part of ONNX": made_by("Binarizer", "ai.onnx.ml"),
    "an unknown operator": made_by("Nix"),
    "more entries than are read": many_entries,
    "a terabyte": before(*TERABYTE),
    "not a number": made_by("Sqrt", of="logits"),
    "other classes": said("class_names", '["a", "b"]'),
    "controls in a name": said("class_names", '["a", "b\\u001b", "c", "d"]'),
    "no JSON": said("class_names", "[" * 10_000),
    "all classes forgotten": said("masked_classes", "[0, 1, 2, 3]"),
    "another size": said("input_size", "[3, 9, 9]"),
    "a huge size": said("input_size", "[3, 100000, 100000]"),
    "familiarity that is none": said("familiarities", "[NaN]"),
    "no metadata": lambda model: model.ClearField("metadata_props"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_strangers_file_is_refused_in_one_line(
    made: tuple[Learner, Path], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "strange.onnx"
    path.write_bytes(changed(made[1], HOSTILE[kind]))
    (photo, *_) = files(tmp_path)
    limits, start = resource.getrlimit(resource.RLIMIT_AS), time.monotonic()
    result = call("predict", path, photo)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: ")
    assert "strange.onnx'" in result.stderr
    assert len(result.stderr) < 1000
    assert time.monotonic() - start < 20
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_what_takes_too_long_is_stopped(
    made: tuple[Learner, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported, "SECONDS", 0.2)
    products = [helper.make_node("MatMul", [f"m{n}", "m0"], [f"m{n + 1}"]) for n in range(2000)]
    slow = (
        numbers("size", 2000, 2000),
        helper.make_node("ConstantOfShape", ["size"], ["m0"]),
        *products,
        helper.make_node("ReduceSum", ["m2000"], ["sum"], keepdims=0),
        helper.make_node("Add", ["was", "sum"], ["probabilities"]),
    )
    path = tmp_path / "slow.onnx"
    path.write_bytes(changed(made[1], before(*slow)))
    start, answerer = time.monotonic(), open_exported(path)
    with pytest.raises(DamagedError, match=r"cannot be run on these images, or not within 0\.2"):
        answerer.answer(np.zeros((1, 8, 8, 3), np.uint8))
    assert time.monotonic() - start < 60


@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_answer_or_are_refused(
    made: tuple[Learner, Path], tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(made[1].read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 3000))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.onnx"
    path.write_bytes(content[: data.draw(st.integers(0, 2 * len(content)))])
    refusal = ""
    try:
        answerer = open_exported(path)
        answerer.answer(np.zeros((2, *answerer.shape[1:], answerer.shape[0]), np.uint8))
    except DamagedError as error:
        refusal = str(error)
    assert not refusal or "changed.onnx'" in refusal
    assert "\n" not in refusal
