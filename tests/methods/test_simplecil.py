import pytest
import torch

from grace.learner.learner import Learner
from grace.methods.simplecil import SimpleCIL
from support.driven import drive
from support.tiny_streams import labelled, learn, learner, task

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def test_raw_means_and_cosines() -> None:
    """The raw mean of (3, 0) and (0, 1) leans to the longer: (.9487, .3162), not (.7071, .7071)."""
    method = learner(SimpleCIL.Settings()).method
    drive(method, task(1, {0: 2, 1: 2}, 0))
    sums = torch.zeros(2, 64, dtype=torch.float64)
    sums[0, :2], sums[1, :2] = torch.tensor([3.0, 1.0]), torch.tensor([0.0, 5.0])
    method.prototypes.value = {"sums": sums, "numbers": torch.tensor([2, 3])}
    features = torch.zeros(1, 64)
    features[0, :2] = torch.tensor([1.0, 2.0])
    scores = method.classifiers()["nearest_mean"].score(features)
    # (1, 2)·(3, 1) / √50 and 2 / √5
    torch.testing.assert_close(scores, torch.tensor([[0.7071068, 0.8944272]]))


def learnt(*stream: dict[int, int]) -> Learner:
    made = learner(SimpleCIL.Settings())
    for counts in stream:
        learn(made, counts)
    return made


def test_neither_order_nor_division_into_tasks_matters() -> None:
    probe = labelled(dict.fromkeys(range(4), 3), seed=5).images
    whole = learnt({0: 8, 1: 8, 2: 8, 3: 8})
    found = whole.predict_proba(probe)
    for stream in ([{0: 8, 1: 8}, {2: 8}, {3: 8}], [{0: 8, 1: 8, 2: 8}, {3: 8}]):
        torch.testing.assert_close(learnt(*stream).predict_proba(probe), found)


def test_images_of_a_known_class_go_on_with_its_mean() -> None:
    once, twice = learnt({0: 8, 1: 8}), learnt({0: 8, 1: 8}, {0: 8})
    before, after = (made.method.prototypes.value for made in (once, twice))
    # The same eight images again: twice the sum and the number, and so the same mean.
    torch.testing.assert_close(after["sums"][0], 2 * before["sums"][0])
    assert after["numbers"].tolist() == [16, 8]
    assert torch.equal(after["sums"][1], before["sums"][1])
