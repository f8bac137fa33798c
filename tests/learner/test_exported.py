"""An exported file answers as its learner does, without torch; a stranger's can do no harm."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from grace.base.errors import DamagedError, GraceError
from grace.learner import exported
from grace.learner.exported import open_exported
from grace.learner.learner import Learner
from grace.learner.prediction import FilePredictor
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.commands import call
from support.quick_exports import operators_once as operators_once
from support.tiny_streams import class_names, labelled, learner, pictures, recipe
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Learner, Path]:
    """A learner with a forgotten class and limits for unknown images, and its export."""
    made = learner(
        Replay.Settings(base=recipe(2), update=recipe()),
        memory=MemorySettings(size=40, validation=10),
    )
    data = labelled({0: 60, 1: 60, 2: 60, 3: 60})
    made.update(data.images, class_names(data))
    made.forget("class 1")
    path = tmp_path_factory.mktemp("made") / "made.onnx"
    made.export(path)
    return made, path


def files(folder: Path) -> list[Path]:
    images = torch.cat([pictures(index, 2, seed=5) for index in range(4)])
    paths = [folder / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((9, 13)).save(path)
    return paths


def test_it_answers_as_its_learner_does(made: tuple[Learner, Path], tmp_path: Path) -> None:
    paths = [*files(tmp_path), tmp_path / "nothing.png"]
    answers = [
        next(FilePredictor(own, top=9, false_alarms=0.2).predict(paths))
        for own in (made[0].answerer(), open_exported(made[1]))
    ]
    assert len({told.guesses[0].index for told in answers[0][:-1]}) > 1
    for expected, found in zip(*answers, strict=True):
        assert [own.index for own in found.guesses] == [own.index for own in expected.guesses]
        assert 1 not in [own.index for own in found.guesses]
        for one, other in zip(found.guesses, expected.guesses, strict=True):
            assert one.probability == pytest.approx(other.probability, abs=1e-5)
            assert one.class_name == other.class_name
        assert (found.is_unknown, found.problem) == (expected.is_unknown, expected.problem)
    assert answers[0][-1].problem is not None


def test_the_command_imports_no_torch(made: tuple[Learner, Path], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom grace.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    slow = ('torch', 'onnx', 'scipy', 'grace.settings.experiment')\n"
        "    found = [own for own in slow if own in sys.modules]\n"
        "    sys.exit(str(found)) if found else None\n"
    )
    (photo, *_) = files(tmp_path)
    words = ["predict", str(made[1]), str(photo), "--unknown", "--false-alarms", "20", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["class"] in made[0].class_names
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
        next(own for own in model.metadata_props if own.key == key).value = value

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


LOOP = helper.make_node(
    "If",
    ["was"],
    ["probabilities"],
    then_branch=helper.make_graph([], "a", [], []),
    else_branch=helper.make_graph([], "b", [], []),
)
TERABYTE = (
    numbers("size", 2**20, 2**18),
    helper.make_node("ConstantOfShape", ["size"], ["large"]),
    helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
    helper.make_node("Mul", ["was", "sum"], ["probabilities"]),
)
HOSTILE: dict[str, Callable[[Any], None]] = {
    "a tensor in another file": elsewhere,
    "a graph inside an operator": before(LOOP),
    "an operator of a stranger": before(
        helper.make_node("Own", ["was"], ["probabilities"], domain="a.b")
    ),
    "an operator of onnxruntime": before(
        helper.make_node("Gelu", ["was"], ["probabilities"], domain="com.microsoft")
    ),
    "an unknown operator": before(helper.make_node("Nix", ["was"], ["probabilities"])),
    "a terabyte": before(*TERABYTE),
    "not a number": before(helper.make_node("Sqrt", ["logits"], ["probabilities"])),
    "other classes": said("class_names", '["a", "b"]'),
    "one class": said("class_names", '["a"]'),
    "controls in a name": said("class_names", '["a", "b\\u001b", "c", "d"]'),
    "no JSON": said("class_names", "[" * 10_000),
    "all classes forgotten": said("masked_classes", "[0, 1, 2, 3]"),
    "a class that is none": said("masked_classes", "[7]"),
    "another size": said("input_size", "[3, 9, 9]"),
    "a huge size": said("input_size", "[3, 100000, 100000]"),
    "another fit": said("fit", "stretch"),
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
    side = numbers("size", 2000, 2000)
    steps = [
        helper.make_node("MatMul", ["m0" if n == 0 else f"m{n}", "m0"], [f"m{n + 1}"])
        for n in range(2000)
    ]
    slow = (
        side,
        helper.make_node("ConstantOfShape", ["size"], ["m0"]),
        *steps,
        helper.make_node("ReduceSum", ["m2000"], ["sum"], keepdims=0),
        helper.make_node("Add", ["was", "sum"], ["probabilities"]),
    )
    path = tmp_path / "slow.onnx"
    path.write_bytes(changed(made[1], before(*slow)))
    answerer = open_exported(path)
    start = time.monotonic()
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
