"""Updates that were killed under an earlier grace end as if nobody had killed them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from earlier_files import (
    TASKS,
    TRAINED,
    UNFINISHED,
    copied,
    facts,
    refuse_unlike,
    refuse_unlike_scores,
    said,
    taught,
    told,
    weights,
)
from grace.learner.learner import Learner

pytestmark = pytest.mark.usefixtures("tiny_network")
every_variant = pytest.mark.parametrize("variant", UNFINISHED)


@every_variant
def test_the_same_update_ends_with_the_same_weights(
    variant: str, written: Path, tmp_path: Path
) -> None:
    """Whether it goes on where it was killed or begins anew."""
    home, images = copied(written / "unfinished" / variant, tmp_path), written / "images"
    straight = Learner.load(copied(written / "unfinished" / f"{variant}-straight", tmp_path))
    kept: Any = facts(written / "unfinished" / f"{variant}.json")
    learner = Learner.load(home)
    assert len(learner.history) == 1
    refuse_unlike(told(taught(images, learner, 2), learner), kept["task 2"])
    refuse_unlike_scores(said(images, learner), kept["scores"], TRAINED)
    own, others = weights(learner), weights(straight)
    assert own.keys() == others.keys()
    for name, tensor in own.items():
        torch.testing.assert_close(tensor, others[name], rtol=0, atol=TRAINED)
    # Nothing unfinished is left.
    learner.forget("dog")
    straight.forget("dog")
    # Exemplars, importances, thresholds too: one task more is learnt alike.
    after = told(taught(images, learner, 3), learner)
    refuse_unlike(after, told(taught(images, straight, 3), straight))
    refuse_unlike_scores(said(images, learner), said(images, straight), TRAINED)


@every_variant
def test_it_is_neither_mistaken_for_another_update_nor_lost(
    variant: str, written: Path, tmp_path: Path
) -> None:
    home, images = copied(written / "unfinished" / variant, tmp_path), written / "images"
    pending = {path.name: path.read_bytes() for path in (home / "pending").iterdir()}
    learner = Learner.load(home)
    with pytest.raises(ValueError, match=r"interrupted.*finish it, or set discard=true"):
        taught(images, learner, 3)
    with pytest.raises(ValueError, match=r"interrupted.*finish it, or set discard"):
        learner.forget("ant")
    assert {path.name: path.read_bytes() for path in (home / "pending").iterdir()} == pending
    assert learner.class_names == list(TASKS[0])
