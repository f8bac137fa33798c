"""The example of a method in a package of its own: listed, run, saved, and held to the contract."""

import re
from pathlib import Path

import pytest

from support import one_process
from support.one_process import Ended
from support.outside_packages import example, python

CONTRACT = Path(__file__).parents[1] / "methods" / "test_contract.py"
SHORT = ("method.base.epochs=1", "method.update.epochs=1", "data.max_train_per_class=20")
LIVES = """
import contextlib
import pytest
import torch
from grace.learner.learner import Learner

# Held to the contract in this process, which has imported torch.
part = "aligned and (repeats or resum or read or quota or frozen)"
suite = ["SUITE", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", part]
with open("PLACE/contract.txt", "w") as said, contextlib.redirect_stdout(said):
    held = pytest.main(suite)
    print("exit code", int(held))

settings = ["method=aligned", "method.base.epochs=1", "method.update.epochs=2", "memory.size=20"]
learner = Learner.create("digits", settings, shape=(1, 8, 8), directory="PLACE/model")
images = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0))
images = images.to(torch.uint8)
learner.update(images[:20], ["a"] * 10 + ["b"] * 10)
learner.update(images[20:], ["c"] * 10 + ["d"] * 10)
assert type(learner.method).__module__ == "grace_aligned.aligned"
# Weight alignment by its definition: the mean lengths of new and old rows are equal.
lengths = learner.method.network.head.weight.norm(dim=1)
torch.testing.assert_close(lengths[2:].mean(), lengths[:2].mean())
again = Learner.load("PLACE/model")
assert torch.equal(again.predict_proba(images), learner.predict_proba(images))
assert again.settings == learner.settings
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def lived(site: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ended]]:
    """What one process wrote with the package: a learner, a run, and what the contract found."""
    place = tmp_path_factory.mktemp("lived")
    return place, one_process.calls(
        ("list", "methods"),
        ("show", "digits", "method=aligned", "--yaml"),
        ("run", "digits", "method=aligned", *SHORT, "--out", place / "run"),
        ("history", place / "model", "--json"),
        ("info", place / "model"),
        paths=(site,),
        before=LIVES.replace("PLACE", str(place)).replace("SUITE", str(CONTRACT)),
    )


def test_it_is_a_method_like_any_other(lived: tuple[Path, list[Ended]]) -> None:
    place, (listed, shown, ran, _, _) = lived
    out = place / "run"
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[-1].split(maxsplit=1) == [
        "aligned",
        "replay, then the new classes' weights scaled to the old ones' mean length",
    ]
    assert "name: aligned" in shown.stdout
    assert ran.exit_code == 0, ran.stderr
    assert (out / "tasks.jsonl").read_text().count('"update"') >= 4
    assert "aligned" in (out / "report.html").read_text()


def test_a_learner_is_saved_and_predicts_the_same(lived: tuple[Path, list[Ended]]) -> None:
    place, (*_, history, info) = lived
    assert history.exit_code == 0, history.stderr
    assert "aligned" in info.stdout
    # Where the package is missing, the learner is refused in a line.
    without = python("-m", "grace", "info", place / "model", paths=())
    assert (without.returncode, len(without.stderr.splitlines())) == (2, 1)
    assert "aligned" in without.stderr


def test_the_contract_suite_runs_over_it(lived: tuple[Path, list[Ended]]) -> None:
    place, _ = lived
    said = (place / "contract.txt").read_text()
    assert said.endswith("exit code 0\n"), said
    found = re.search(r"(\d+) passed", said)
    assert found is not None, said
    assert int(found[1]) >= 3
