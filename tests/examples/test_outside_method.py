"""The example of a method in a package of its own: listed, run, saved, and held to the contract."""

from pathlib import Path

import pytest

from support import one_process
from support.outside_packages import EXAMPLE, example, python

TESTS = Path(__file__).parents[1]
SHORT = ("method.base.epochs=1", "method.update.epochs=1", "data.max_train_per_class=20")
LIVES = """
import sys
import torch
from grace.learner.learner import Learner

settings = ["method=aligned", "method.base.epochs=1", "method.update.epochs=2", "memory.size=20"]
learner = Learner.create("digits", settings, shape=(1, 8, 8), directory=sys.argv[1])
images = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0))
images = images.to(torch.uint8)
learner.update(images[:20], ["a"] * 10 + ["b"] * 10)
learner.update(images[20:], ["c"] * 10 + ["d"] * 10)
assert type(learner.method).__module__ == "grace_aligned.method"
# Weight alignment by its definition: the mean lengths of new and old rows are equal.
lengths = learner.method.network.head.weight.norm(dim=1)
torch.testing.assert_close(lengths[2:].mean(), lengths[:2].mean())
again = Learner.load(sys.argv[1])
assert torch.equal(again.predict_proba(images), learner.predict_proba(images))
assert again.settings == learner.settings
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example(tmp_path_factory.mktemp("site"))


def test_it_is_a_method_like_any_other(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    listed, shown, ran = one_process.calls(
        ("list", "methods"),
        ("show", "digits", "method=aligned", "--yaml"),
        ("run", "digits", "method=aligned", *SHORT, "--out", out),
        paths=(site,),
    )
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[-1].split(maxsplit=1) == [
        "aligned",
        "replay, then the new classes' weights scaled to the old ones' mean length",
    ]
    assert "name: aligned" in shown.stdout
    assert ran.exit_code == 0, ran.stderr
    assert (out / "tasks.jsonl").read_text().count('"update"') >= 4
    assert "aligned" in (out / "report.html").read_text()


def test_a_learner_is_saved_and_predicts_the_same(site: Path, tmp_path: Path) -> None:
    done = python("-c", LIVES, tmp_path / "model", paths=(site,))
    assert done.returncode == 0, done.stderr
    history, info = one_process.calls(
        ("history", tmp_path / "model", "--json"), ("info", tmp_path / "model"), paths=(site,)
    )
    assert history.exit_code == 0, history.stderr
    assert "aligned" in info.stdout
    # Where the package is missing, the learner is refused in a line.
    without = python("-m", "grace", "info", tmp_path / "model", paths=())
    assert (without.returncode, len(without.stderr.splitlines())) == (2, 1)
    assert "aligned" in without.stderr


def test_the_contract_suite_runs_over_it(site: Path) -> None:
    part = "aligned and (repeats or resum or read or quota or frozen)"
    done = python(
        *("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", part),
        TESTS / "methods" / "test_contract.py",
        paths=(site, EXAMPLE / "tests"),
        GRACE_CONTRACT_VARIANTS="variants",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
