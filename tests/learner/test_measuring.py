"""What is held out by default, and what an update's numbers are made of."""

from typing import Any

import pytest
import torch

from grace.data.images import LabelledImages, TensorImages
from grace.engine.ranks import Ranks
from grace.learner.admit import Ceiling, check_input, hold_out
from grace.learner.gate import Accuracies
from grace.learner.model_state import HeldOut
from grace.learner.recommend import new_settings
from grace.learner.update import compared
from grace.methods.replay import Replay
from grace.settings.experiment import GateSettings, MemorySettings
from support.tiny_streams import SIZE, pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@pytest.mark.parametrize(
    ("count", "held"), [(2, 0), (3, 1), (9, 1), (20, 4), (140, 28), (250, 50), (600, 50)]
)
def test_by_default_fifty_and_at_most_a_fifth(count: int, held: int) -> None:
    wanted = new_settings("folder", []).memory.validation
    assert wanted == 50
    assert len(hold_out(count, wanted, seed=1, name="cat", number=1)) == held


@pytest.mark.parametrize(
    ("max_mb", "held", "missing", "count"),
    # Images of 3 kB: a fifth of 4 MB is 266 of them.
    [(4, 0, 4, 50), (4, 0, 10, 26), (4, 80, 10, 18), (1, 0, 50, 10), (4, 300, 2, 10)],
)
def test_under_a_ceiling(max_mb: int, held: int, missing: int, count: int) -> None:
    before, shape = HeldOut(), (3, 20, 50)
    before.add(0, TensorImages(torch.zeros(held, *shape, dtype=torch.uint8)))
    for wanted in (50, 3):
        memory = MemorySettings(size=None, max_mb=max_mb, validation=wanted)
        chosen = settings(Replay.Settings(base=recipe(), update=recipe()), memory=memory)
        ceiling = Ceiling(chosen, shape, Ranks(), 0)
        assert ceiling.num_held_out(before, missing) == min(wanted, count)


def judged(*labels: int) -> LabelledImages:
    return LabelledImages(
        TensorImages(torch.zeros(len(labels), 3, 8, 8).byte()), torch.tensor(labels)
    )


def test_numbers_by_hand() -> None:
    data = judged(0, 0, 0, 1, 1, 2, 2)
    before = torch.tensor([True, True, False, True, False])
    after = torch.tensor([True, False, True, True, True, True, False])
    found = Accuracies(classes=compared(before, after, data, {0, 1}))
    assert (found.old_before, found.old_after, found.new_after) == (3 / 5, 4 / 5, 1 / 2)
    assert (found.num_old, found.num_new) == (5, 2)
    assert [
        (own.index, own.num, own.before, own.after, own.lost, own.won) for own in found.classes
    ] == [(0, 3, 2, 2, 1, 1), (1, 2, 1, 2, 0, 1), (2, 2, None, 1, 0, 0)]
    assert compared(None, None, None, {0}) == ()


def test_nothing_is_lost_where_nothing_could_predict_before() -> None:
    # Joint training that waits for the last update: old classes have images, but no predictor.
    after = torch.tensor([True, False, True])
    found = Accuracies(classes=compared(None, after, judged(0, 0, 1), {0}))
    assert (found.old_before, found.old_after, found.new_after) == (None, None, 2 / 3)
    assert (found.drop, [own.before for own in found.classes]) == (None, [None, None])


def test_the_digest_is_that_of_images_and_labels() -> None:
    images = pictures(0, 2)

    def digest(labels: str, **options: Any) -> str:
        return check_input(images, list(labels), None, (3, SIZE, SIZE), **options).digest

    assert digest("aa", gate=GateSettings(max_drop=5)) == digest("aa")
    assert len({digest("aa"), digest("ab"), digest("aa", is_last=True)}) == 3
