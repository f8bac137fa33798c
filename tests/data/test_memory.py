"""Herding, quotas, class means and the exemplar memory. Worked by hand
from docs/protocols.md#herding and docs/protocols.md#classifiers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.preprocessing import normalize
from torch import Tensor

from grace.data.images import TensorImages
from grace.data.memory import (
    ExemplarMemory,
    Room,
    class_mean,
    herd,
    nearest_mean,
    normalise_features,
    quota,
)
from grace.settings.experiment import MemorySettings


def pixels(*levels: int) -> TensorImages:
    return TensorImages(torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1))


def stored(memory: ExemplarMemory, index: int) -> list[int]:
    images = memory.of_class(index)
    return [int(level) for level in images.gather(torch.arange(len(images))).flatten()]


def test_quota_sequence_of_b0i5() -> None:
    # docs/protocols.md#exemplar-memory
    expected = [400, 200, 133, 100, 80, 66, 57, 50, 44, 40, 36, 33, 30, 28, 26, 25, 23, 22, 21, 20]
    assert [quota(2000, seen) for seen in range(5, 101, 5)] == expected


def test_herding_worked_by_hand() -> None:
    # Normalised rows: a = (1, 0), b = (0, 1), c = (.6, .8), d = (1, 0); mean (.65, .45).
    # k=1: |mean - a|² = .1225 + .2025 = .325, b: .4225 + .3025 = .725, c: .0025 + .1225 = .125 → c
    # k=2: (c + a)/2 = (.8, .4): .0225 + .0025 = .025; (c + b)/2 = (.3, .9): .325; d ties a → a
    # k=3: (c + a + b)/3 = (.5333, .6): .0361; (c + a + d)/3 = (.8667, .2667): .0806 → b
    features = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.6, 0.8], [5.0, 0.0]])
    assert (herd(features, 4).tolist(), herd(features, 2).tolist()) == ([2, 0, 1, 3], [2, 0])


def test_the_memory_keeps_the_first_of_each_class_in_herding_order() -> None:
    memory = ExemplarMemory(MemorySettings(size=6))
    memory.store(1, pixels(10, 11, 12, 13), torch.tensor([3, 0, 2]))
    memory.store(0, pixels(20, 21, 22), torch.tensor([1, 2, 0]))
    assert stored(memory, 1) == [13, 10, 12]
    assert memory.classes == [0, 1]
    assert (len(memory), memory.num_bytes) == (6, 6)
    memory.reduce(memory.quota(3))
    assert stored(memory, 1) == [13, 10]
    data = memory.data()
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert data.images.gather(torch.arange(4)).flatten().tolist() == [21, 22, 13, 10]


def test_originals_are_counted_over_tasks() -> None:
    memory = ExemplarMemory(MemorySettings(size=4))
    memory.record_originals(torch.tensor([0, 0, 2]))
    memory.record_originals(torch.tensor([2, 2]))
    assert memory.original_counts == {0: 2, 2: 3}


def test_a_copy_changes_on_its_own() -> None:
    memory = ExemplarMemory(MemorySettings(size=4))
    memory.store(0, pixels(1, 2, 3), torch.arange(3))
    memory.record_originals(torch.zeros(3, dtype=torch.int64))
    other = memory.copy()
    other.reduce(1)
    other.record_originals(torch.zeros(1, dtype=torch.int64))
    assert (len(memory), len(other)) == (3, 1)
    assert (memory.original_counts, other.original_counts) == ({0: 3}, {0: 4})


@given(st.integers(1, 60), st.lists(st.integers(0, 30), min_size=1, max_size=10))
def test_the_memory_never_exceeds_its_size(size: int, counts: list[int]) -> None:
    memory = ExemplarMemory(MemorySettings(size=size))
    for index, count in enumerate(counts[:size]):
        allowed = memory.quota(index + 1)
        memory.reduce(allowed)
        features: Tensor = torch.arange(count * 2, dtype=torch.float32).view(count, 2)
        memory.store(index, pixels(*range(count)), herd(features, allowed))
        assert len(memory) <= size
        assert all(len(memory.of_class(known)) <= allowed for known in range(index + 1))


def test_normalised_features_and_means_are_scikit_learns() -> None:
    features = torch.randn(9, 5, generator=torch.Generator().manual_seed(2))
    unit = normalize(features.numpy())
    torch.testing.assert_close(normalise_features(features), torch.from_numpy(unit))
    mean = normalize(unit.mean(0, keepdims=True))[0]
    torch.testing.assert_close(class_mean(features), torch.from_numpy(mean))
    # A dead image has no direction.
    assert normalise_features(torch.zeros(1, 5)).tolist() == [[0.0] * 5]


def test_nearest_means_are_scipys_distances() -> None:
    draws = torch.Generator().manual_seed(3)
    features, means = torch.randn(9, 5, generator=draws), torch.randn(4, 5, generator=draws)
    expected = -cdist(normalize(features.numpy()), means.numpy(), "sqeuclidean")
    found = nearest_mean(features, means).double()
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-4, atol=1e-4)


class TestRoomOfSmallClasses:
    """Exemplars of 10 bytes beside 40 bytes of weights in 140: ten of them."""

    @pytest.mark.parametrize(
        ("num_classes", "counts", "expected"),
        [
            (2, (), 5),
            (2, (9, 9), 5),
            # One class has 2, which leaves 8 to the other.
            (2, (2, 50), 8),
            # 1 + 3 + 6; 6 is what is left.
            (3, (3, 50, 1), 6),
            # 1 + 4 + 4; with 5 each it would be eleven.
            (3, (7, 1, 7), 4),
            # The third class, of which nothing is known, may need as many as the second.
            (3, (2, 9), 4),
            (3, (2,), 4),
            # All fit: 2 + 3, and the larger class has room for 8.
            (2, (2, 3), 8),
        ],
    )
    def test_it_goes_to_the_others(
        self, num_classes: int, counts: tuple[int, ...], expected: int
    ) -> None:
        room = Room(num_bytes=140, image_bytes=10)
        assert room.quota(num_classes, 40, counts) == expected

    def test_the_memory_counts_stored_and_coming_images(self) -> None:
        memory = ExemplarMemory(MemorySettings(size=None, max_mb=1))
        memory.room = Room(num_bytes=140, image_bytes=10)
        images = TensorImages(torch.zeros((9, 1, 2, 5), dtype=torch.uint8))
        memory.store(0, images, torch.arange(1))
        memory.store(2, images, torch.arange(1))
        # Classes 0, 1, 2 will have 2, 6 and 1 images: all nine fit, and 10 - 2 - 1 of class 1.
        coming = torch.tensor([0] + 6 * [1])
        assert memory.quota(3, 40, coming) == 7
        assert memory.quota(3, 40) == 3
