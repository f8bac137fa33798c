"""Learners that an earlier grace saved are loaded, say the same, and go on as they would have."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from earlier_files import (
    NAMES,
    SCORES,
    TASKS,
    TRAINED,
    VARIANTS,
    copied,
    facts,
    loaded,
    pictures,
    refuse_unlike,
    refuse_unlike_scores,
    said,
    taught,
    told,
)
from grace.learner.learner import Learner
from support.commands import ran

every_variant = pytest.mark.parametrize("variant", VARIANTS)
pytestmark = pytest.mark.usefixtures("tiny_network")


def expected(written: Path, variant: str) -> Any:
    return facts(written / "learners" / f"{variant}.json")


@every_variant
@pytest.mark.parametrize("version", [1, 2])
def test_every_version_is_loaded_and_says_the_same(
    variant: str, version: int, written: Path
) -> None:
    learner, images = Learner.load(written / "learners" / variant, version), written / "images"
    found, kept = said(images, learner), expected(written, variant)
    refuse_unlike_scores(found, kept["scores"][str(version)], SCORES)
    assert len(learner.history) == version
    assert learner.class_names == list(NAMES[: 2 * version])
    after = kept[f"task {version}"]
    assert learner.history[-1].outcome.verdict == after["verdict"]
    assert learner.history[-1].outcome.saturation == after["saturation"]
    assert learner.size().num_backbones == after["num_backbones"]
    assert learner.size().num_parameters == after["num_parameters"]
    # Names and probabilities are those of the primary predictor's scores as they were.
    asked, _ = pictures(images, "test", NAMES)
    primary = torch.tensor(next(iter(kept["scores"][str(version)].values())))
    assert learner.predict(asked) == [NAMES[int(index)] for index in primary.argmax(dim=1)]
    torch.testing.assert_close(
        learner.predict_proba(asked), primary.softmax(dim=1), rtol=0, atol=SCORES
    )


@every_variant
def test_a_third_task_is_learnt_as_the_earlier_grace_learnt_it(
    variant: str, written: Path, tmp_path: Path
) -> None:
    home, images = copied(written / "learners" / variant, tmp_path), written / "images"
    kept = expected(written, variant)
    learner = loaded(images, home)
    refuse_unlike(told(taught(images, learner, 3), learner), kept["task 3"])
    refuse_unlike_scores(said(images, learner), kept["scores"]["3"], TRAINED)
    # What was written is there beside what is written now.
    again = Learner.load(home)
    assert [update.task for update in again.history] == [1, 2, 3]
    assert [update.new_class_names for update in again.history] == list(TASKS)
    refuse_unlike_scores(said(images, again), said(images, learner), SCORES)
    again.rollback(2)
    refuse_unlike_scores(said(images, again), kept["scores"]["2"], SCORES)


@every_variant
def test_it_is_rolled_back_and_learns_from_there(
    variant: str, written: Path, tmp_path: Path
) -> None:
    home, images = copied(written / "learners" / variant, tmp_path), written / "images"
    kept = expected(written, variant)
    Learner.load(home).rollback(1)
    learner = loaded(images, home)
    refuse_unlike_scores(said(images, learner), kept["scores"]["1"], SCORES)
    # The second task once more: it ends where it ended.
    refuse_unlike(told(taught(images, learner, 2), learner), kept["task 2"])
    refuse_unlike_scores(said(images, learner), kept["scores"]["2"], TRAINED)


@every_variant
def test_it_forgets_a_class_and_no_other(variant: str, written: Path, tmp_path: Path) -> None:
    home, images = copied(written / "learners" / variant, tmp_path), written / "images"
    Learner.load(home).forget("bee")
    asked, _ = pictures(images, "test", NAMES)
    for version in (1, 2):
        learner = Learner.load(home, version)
        assert "bee" not in learner.predict(asked)
        assert float(learner.predict_proba(asked)[:, 1].max()) == 0
        left = [index for index in range(2 * version) if index != 1]
        found, scores = said(images, learner), expected(written, variant)["scores"][str(version)]
        of_the_others = (
            {name: torch.tensor(own)[:, left].tolist() for name, own in found.items()},
            {name: torch.tensor(own)[:, left].tolist() for name, own in scores.items()},
        )
        refuse_unlike_scores(*of_the_others, SCORES)


def test_the_cutoff_of_what_is_unknown_is_kept(written: Path) -> None:
    """Two images of each of four classes are held out: one in eight of them may be called so."""
    learner = Learner.load(written / "learners" / "grace-grown")
    assert len(learner.familiarities) == 8
    held_out = learner.held_out.data()
    found = learner.decision_function(held_out.images).logsumexp(dim=1).sort().values
    torch.testing.assert_close(learner.familiarities, found, rtol=0, atol=SCORES)


def test_the_commands_know_it(written: Path, tmp_path: Path) -> None:
    home, images = copied(written / "learners" / "grace-grown", tmp_path), written / "images"

    def call(*arguments: object) -> str:
        return str(ran(*arguments).stdout)

    rows = json.loads(call("history", home, "--json"))
    assert "elk" not in json.dumps(rows)
    assert [name in json.dumps(rows) for name in NAMES[:4]] == [True] * 4
    assert "dog" in call("info", home)
    scores = expected(written, "grace-grown")["scores"]["2"]["linear"]
    best = [NAMES[max(range(4), key=row.__getitem__)] for row in scores[:2]]
    asked = call("predict", home, images / "test" / "ant", "--format", "jsonl").splitlines()
    assert [name in line for name, line in zip(best, asked, strict=True)] == [True, True]
    call("rollback", home, "1")
    assert Learner.load(home).class_names == ["ant", "bee"]
    call("rollback", home, "2")
    call("forget", home, "cat", "--yes")
    assert Learner.load(home).forgotten == {2}
