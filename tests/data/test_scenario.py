"""Class order, split into tasks, and what a task holds. Numbers are
those of docs/protocols.md#class-order and docs/protocols.md#tasks."""

import pytest
import torch

from grace.data.images import Dataset, LabelledImages, TensorImages
from grace.data.scenario import Scenario, class_order, task_sizes
from grace.settings.experiment import ScenarioSettings


def numbered(labels: list[int]) -> LabelledImages:
    """Images of one pixel whose level is their position in the dataset."""
    levels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    return LabelledImages(TensorImages(levels), torch.tensor(labels))


def dataset(labels: list[int], num_classes: int) -> Dataset:
    names = [f"class{label}" for label in range(num_classes)]
    return Dataset("made", numbered(labels), numbered(labels), names, (0.5,), (0.5,))


def levels(data: LabelledImages) -> list[int]:
    return [int(level) for level in data.images.gather(torch.arange(len(data))).flatten()]


def test_class_order_of_a_hundred_classes() -> None:
    order = class_order(100, 1993)
    assert order[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    assert order[-5:] == [67, 29, 49, 57, 33]


def test_class_order_of_ten_and_a_thousand_classes() -> None:
    assert class_order(10, 1993) == [4, 2, 7, 6, 0, 3, 5, 8, 9, 1]
    assert class_order(1000, 1993)[:5] == [54, 7, 894, 512, 126]


@pytest.mark.parametrize(
    ("base", "increment", "num_tasks"), [(0, 5, 20), (0, 10, 10), (50, 2, 26), (50, 10, 6)]
)
def test_the_four_protocols(base: int, increment: int, num_tasks: int) -> None:
    sizes = task_sizes(100, base, increment)
    assert len(sizes) == num_tasks
    assert sizes == [base or increment] + [increment] * (num_tasks - 1)


def test_the_remainder_is_the_last_task() -> None:
    assert (task_sizes(10, 0, 3), task_sizes(10, 4, 4)) == ([3, 3, 3, 1], [4, 4, 2])
    assert task_sizes(10, 10, 5) == [10]


def test_tasks_hold_only_their_images_class_by_class_in_dataset_order() -> None:
    # Order 2 0 1 3: class index 0 is label 2, which stands at positions 1 and 6.
    settings = ScenarioSettings(base=2, increment=1, class_order=(2, 0, 1, 3))
    scenario = Scenario(dataset([0, 2, 1, 3, 0, 1, 2, 3], 4), settings, seed=0)
    tasks = list(scenario)
    assert len(scenario) == 3
    assert list(scenario.task_sizes) == [2, 1, 1]
    assert scenario.class_names == ["class2", "class0", "class1", "class3"]
    assert [levels(task.data) for task in tasks] == [[1, 6, 0, 4], [2, 5], [3, 7]]
    assert [task.data.labels.tolist() for task in tasks] == [[0, 0, 1, 1], [2, 2], [3, 3]]
    assert [list(task.new_classes) for task in tasks] == [[0, 1], [2], [3]]
    assert [task.number for task in tasks] == [1, 2, 3]
    assert [task.num_old_outputs for task in tasks] == [0, 2, 3]
    assert [task.num_classes for task in tasks] == [2, 3, 4]
    assert [task.is_last for task in tasks] == [False, False, True]


def test_test_images_are_those_of_all_seen_classes() -> None:
    settings = ScenarioSettings(base=2, increment=1, class_order=(2, 0, 1))
    scenario = Scenario(dataset([0, 1, 2, 1], 3), settings, seed=0)
    assert levels(scenario.test_images(1)) == [2, 0]
    assert levels(scenario.test_images(2)) == [2, 0, 1, 3]
    assert scenario.test_images(2).labels.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("order", [(0, 1, 1), (0, 1, 2, 3)])
def test_a_class_order_that_is_no_permutation_is_refused(order: tuple[int, ...]) -> None:
    settings = ScenarioSettings(increment=2, class_order=order)
    with pytest.raises(ValueError, match="no permutation of the labels 0 to 2"):
        Scenario(dataset([0, 1, 2], 3), settings, seed=0)


def test_a_base_larger_than_the_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scenario\.base 5 .* 3 classes"):
        Scenario(dataset([0, 1, 2], 3), ScenarioSettings(base=5, increment=1), seed=0)


def test_a_class_without_training_images_is_refused() -> None:
    with pytest.raises(ValueError, match="'class2' has no training images"):
        Scenario(dataset([0, 1], 3), ScenarioSettings(increment=2), seed=0)
