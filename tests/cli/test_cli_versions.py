"""``grace rollback`` and ``grace forget`` on a learner of three versions."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.finetune import Finetune
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support import one_process
from support.commands import ran
from support.learn_calls import files
from support.tiny_streams import pictures, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

NAMES = ("ant", "bee", "cat", "dog")


def images_of(*names: str, seed: int = 0) -> tuple[torch.Tensor, list[str]]:
    pixels = [pictures(NAMES.index(name), 10, seed=seed) for name in names]
    return torch.cat(pixels), [name for name in names for _ in range(10)]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> Path:
    """Versions of two, three and four classes."""
    model = tmp_path_factory.mktemp("stream") / "model"
    method = Replay.Settings(base=recipe(3), update=recipe(3))
    made = Learner.create(
        settings(method, memory=MemorySettings(size=40, validation=2)),
        shape=(3, 8, 8),
        directory=model,
    )
    for names in (("ant", "bee"), ("cat",), ("dog",)):
        made.update(*images_of(*names))
    return model


@pytest.fixture
def model(stream: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stream, tmp_path / "model")


class TestRollback:
    def test_back_and_forth(self, model: Path) -> None:
        back = ran("rollback", model, 1)
        assert back.stdout.splitlines() == [
            f"'{model}' is at version 1 now, it was at 3",
            "classes gone  cat, dog",
            f"undo  grace rollback {model} 3",
        ]
        assert Learner.load(model).class_names == ["ant", "bee"]
        forth = ran("rollback", model, 2)
        assert "classes back  cat" in forth.stdout.splitlines()
        assert Learner.load(model).class_names == ["ant", "bee", "cat"]
        before = files(model)
        assert ran("rollback", model, 2).stdout == (
            f"'{model}' is at version 2 already: nothing to do\n"
        )
        assert files(model) == before

    def test_a_rejected_version_can_be_used(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        method = Finetune.Settings(base=recipe(8), update=recipe(8))
        made = Learner.create(
            settings(method, memory=MemorySettings(validation=2)), shape=(3, 8, 8), directory=model
        )
        made.update(*images_of("ant", "bee"))
        update = made.update(*images_of("cat", "dog"), max_drop=0)
        assert not update.accepted
        result = ran("rollback", model, 2)
        assert (
            f"it was rejected: the old classes lost {update.accuracy.drop:.1f} points, 0 allowed "
            "(gate.max_drop)"
        ) in result.stdout
        assert Learner.load(model).class_names == list(NAMES)

    def test_a_version_that_cannot_be_loaded_is_refused(self, model: Path) -> None:
        for ref in ModelStore.open(model).document(1).refs:
            if ref not in ModelStore.open(model).document(3).refs:
                (model / "objects" / f"{ref.sha256}.safetensors").write_bytes(b"damaged")
        result = ran("rollback", model, 1, code=2)
        assert result.stderr.startswith("error: ")
        assert "damaged" in result.stderr
        assert ModelStore.open(model).current() == 3

    @pytest.mark.parametrize("name", ["current.json", "versions/0003.json"])
    def test_a_damaged_version_in_use_can_be_left(self, model: Path, name: str) -> None:
        (model / name).write_text("{")
        result = ran("rollback", model, 2)
        assert "is damaged" in result.stderr
        assert f"'{model}' is at version 2 now" in result.stdout
        assert "undo" not in result.stdout
        assert ModelStore.open(model).current() == 2

    def test_wrong_input(self, model: Path, tmp_path: Path) -> None:
        assert "has no version 7 (it has 1, 2, 3)" in ran("rollback", model, 7, code=2).stderr
        assert "is no learner" in ran("rollback", tmp_path, 1, code=2).stderr
        with ModelStore.open(model).changing():
            assert "another process" in ran("rollback", model, 1, code=2).stderr
        assert ModelStore.open(model).current() == 3

    def test_an_interrupted_update_is_told_of(self, model: Path) -> None:
        ModelStore.open(model).begin(3, "0" * 64)
        assert "an interrupted update only goes on from" in ran("rollback", model, 1).stderr


class TestForget:
    def test_the_images_go_and_the_class_is_never_predicted(self, model: Path) -> None:
        gone = {document.exemplars[0].sha256 for document in ModelStore.open(model).documents()} | {
            document.validation[0].sha256 for document in ModelStore.open(model).documents()
        }
        result = ran("forget", model, "ant", "--yes")
        assert result.stdout.splitlines() == [
            f"forgot 'ant': removed its images from versions 1, 2, 3 of '{model}'",
            "the weights are not unlearnt: what they know of it is hidden, not gone",
        ]
        assert not any((model / "objects" / f"{sha256}.safetensors").exists() for sha256 in gone)
        for number in (1, 2, 3):
            learner = Learner.load(model, number)
            assert learner.class_names.index("ant") == 0
            assert "ant" not in learner.predict(images_of("ant", seed=3)[0])
        before = files(model)
        again = ran("forget", model, "ant", "--yes")
        assert again.stdout == f"'{model}' has forgotten 'ant' already: nothing to do\n"
        assert files(model) == before

    def test_a_class_of_another_version_alone(self, model: Path) -> None:
        ran("rollback", model, 1)
        result = ran("forget", model, "dog", "--yes")
        assert f"removed its images from version 3 of '{model}'" in result.stdout
        assert ModelStore.open(model).document(3).forgotten == (3,)

    def test_without_a_terminal_it_wants_to_be_sure(self, model: Path) -> None:
        before = files(model)
        result = ran("forget", model, "ant", code=2)
        assert result.stderr == (
            "error: 'ant' would be gone for good: add --yes to forget it without asking\n"
        )
        assert files(model) == before

    @pytest.mark.parametrize(
        ("answer", "code", "last"),
        [
            (b"y\n", 0, "the weights are not unlearnt: what they know of it is hidden, not gone"),
            (b"n\n", 0, "nothing was changed"),
            (b"\x04", 130, "interrupted"),
        ],
    )
    def test_on_a_terminal_it_asks(self, model: Path, answer: bytes, code: int, last: str) -> None:
        ours, theirs = pty.openpty()
        script = (
            "import sys\nfrom grace.cli import main\n"
            "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, "forget", str(model), "ant"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            os.write(ours, answer)
            told = process.communicate(timeout=60)[0].decode()
        os.close(ours)
        os.close(theirs)
        assert process.returncode == code, told
        assert "The weights are not unlearnt" in told
        assert "Forget 'ant'? [y/N]" in told
        assert told.endswith(f"{last}\n")
        assert (ModelStore.open(model).document(3).forgotten == (0,)) == (answer == b"y\n")

    def test_wrong_input(self, model: Path, tmp_path: Path) -> None:
        before = files(model)
        error = ran("forget", model, "catt", "--yes", code=2).stderr
        assert "no class 'catt'; did you mean 'cat'?" in error
        error = ran("forget", model, "x", "--yes", code=2).stderr
        assert "no class 'x' (known: ant, bee, cat, dog" in error
        assert "is no learner" in ran("forget", tmp_path, "ant", code=2).stderr
        with ModelStore.open(model).changing():
            assert "another process" in ran("forget", model, "ant", "--yes", code=2).stderr
        assert {**files(model), "lock": b""} == {**before, "lock": b""}

    def test_the_last_class_stays(self, model: Path) -> None:
        ran("rollback", model, 1)
        ran("forget", model, "ant", "--yes")
        assert "'bee' is the last class" in ran("forget", model, "bee", "--yes", code=2).stderr

    def test_an_interrupted_update_comes_first(self, model: Path) -> None:
        ModelStore.open(model).begin(3, "0" * 64)
        error = ran("forget", model, "ant", "--yes", code=2).stderr
        assert "was interrupted and may still use the images" in error
        ran("learn", "--model", model, "--discard")
        ran("forget", model, "ant", "--yes")


def test_help_needs_no_torch() -> None:
    calls = [(verb, "--help") for verb in ("learn", "rollback", "forget")]
    ends = one_process.calls(*calls, without=["torch", "numpy", "PIL"])
    assert [end.exit_code for end in ends] == [0, 0, 0]
