"""Scenario: the classes of a data set, divided into tasks.

Shapes: N images of a task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from grace.base.errors import GraceError
from grace.data.images import Dataset, LabelledImages
from grace.settings.experiment import ScenarioSettings


def class_order(num_classes: int, seed: int) -> list[int]:
    """Draw the permutation of the labels in which classes arrive.

    ``RandomState(seed).permutation(num_classes)``, as in the published protocols, with seed 1993.
    NumPy's global generator is not used.

    Args:
        num_classes: number of labels, at least 1.
        seed: seed of the permutation, at least 0.

    Returns:
        The labels in order of arrival: the class with *index* ``i`` has label ``order[i]``.

    Reference:
        docs/protocols.md#class-order.
    """
    legacy = np.random.RandomState(seed)
    return [int(label) for label in legacy.permutation(num_classes)]


def task_sizes(num_classes: int, base: int, increment: int) -> list[int]:
    """Split classes into tasks: ``base``, then ``increment`` each, the remainder in the last task.

    Args:
        num_classes: number of classes in all.
        base: classes in the first task; 0 means ``increment``.
        increment: classes in each later task, at least 1. Higher: fewer tasks.

    Returns:
        Number of new classes per task; they sum to ``num_classes``.

    Raises:
        GraceError: if the first task would need more classes than there are.

    Reference:
        docs/protocols.md#tasks: Base 0 Inc 5 of 100 classes has 20 tasks, Base 50 Inc 10 has 6.
    """
    first = base or increment
    if first > num_classes:
        setting = "base" if base else "increment"
        raise GraceError(
            f"scenario.{setting} {first} exceeds the {num_classes} classes of the dataset",
            f"set it to at most {num_classes}",
        )
    later, remainder = divmod(num_classes - first, increment)
    return [first] + [increment] * later + ([remainder] if remainder else [])


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """One step of the stream: the training images of some classes, and nothing else.

    ``data`` holds N images labelled with class indices. Images of classes seen before are legal
    and count as old.

    Forgotten classes make two counts necessary. A forgotten class keeps its index and its output of
    the head, so tensors are cut at ``num_old_outputs``. It counts in no formula, so K_old is
    ``num_old_remembered`` and K is ``num_remembered``. Without forgotten classes they are equal.
    """

    number: int
    """Position in the stream, 1 for the first task (the paper's t)."""
    data: LabelledImages
    new_classes: range
    """Class indices that appear for the first time; lower indices are old. It may be empty."""
    is_last: bool = False
    """True if the stream is known to end here. For the upper bound in studies, not for methods."""
    forgotten: frozenset[int] = frozenset()
    """Old class indices that were forgotten on request."""

    def __post_init__(self) -> None:
        assert self.number >= 1
        assert self.new_classes.step == 1
        assert all(0 <= index < self.num_old_outputs for index in self.forgotten)
        labels = self.data.labels
        assert self.forgotten.isdisjoint(labels.tolist())
        assert len(labels) == 0 or 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes

    @property
    def num_classes(self) -> int:
        """Classes seen including this task, forgotten ones too: the number of outputs."""
        return self.new_classes.stop

    @property
    def num_new_classes(self) -> int:
        """Number of classes that appear for the first time (K_new)."""
        return len(self.new_classes)

    @property
    def num_old_outputs(self) -> int:
        """Outputs of old classes, forgotten ones too: where logits, labels and rows are cut."""
        return self.new_classes.start

    @property
    def num_old_remembered(self) -> int:
        """Old classes that were not forgotten: K_old in λ, κ, the bias B and all other formulas."""
        return self.num_old_outputs - len(self.forgotten)

    @property
    def num_remembered(self) -> int:
        """Classes seen that were not forgotten: K in the quota M // K and all other formulas."""
        return self.num_classes - len(self.forgotten)

    @property
    def remembered_classes(self) -> list[int]:
        """Class indices seen that were not forgotten, ascending."""
        return [index for index in range(self.num_classes) if index not in self.forgotten]

    @property
    def present_classes(self) -> list[int]:
        """Class indices with images in this task, old and new, ascending."""
        return sorted(set(self.data.labels.tolist()))


@final
class Scenario:
    """A dataset with a class order and a split: an iterable of tasks.

    Each task carries only its own training images, class by class in dataset order
    (docs/protocols.md#tasks);
    test images are the experiment's.

    Args:
        dataset: images with original labels.
        settings: base, increment, and an explicit class order if there is one.
        seed: seed of the class order where none is explicit.

    Raises:
        GraceError: if the class order is no permutation, the first task has more classes than there
            are, or a class has no training images.
    """

    def __init__(self, dataset: Dataset, settings: ScenarioSettings, seed: int) -> None:
        num_classes = len(dataset.class_names)
        self.order: Sequence[int] = tuple(
            class_order(num_classes, seed) if settings.class_order is None else settings.class_order
        )
        if sorted(self.order) != list(range(num_classes)):
            raise GraceError(
                f"scenario.class_order is no permutation of the labels 0 to {num_classes - 1}",
                "list every label exactly once",
            )
        self.task_sizes: Sequence[int] = task_sizes(num_classes, settings.base, settings.increment)
        self.class_names: Sequence[str] = [dataset.class_names[label] for label in self.order]
        self._dataset = dataset
        counts = torch.bincount(dataset.train.labels, minlength=num_classes)
        if not bool(counts.all()):
            name = dataset.class_names[int((counts == 0).nonzero()[0])]
            raise GraceError(f"class '{name}' has no training images", "add some or leave it out")

    def __len__(self) -> int:
        """Return the number of tasks T."""
        return len(self.task_sizes)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks in order."""
        num_old = 0
        for number, size in enumerate(self.task_sizes, start=1):
            new = range(num_old, num_old + size)
            yield Task(
                number=number,
                data=self._of_classes(self._dataset.train, new),
                new_classes=new,
                is_last=number == len(self),
            )
            num_old += size

    def test_images(self, num_tasks: int) -> LabelledImages:
        """Return the test images of all classes of the first ``num_tasks`` tasks, class by class.

        Args:
            num_tasks: tasks done, 1 to ``len(self)``.
        """
        assert 1 <= num_tasks <= len(self)
        return self._of_classes(self._dataset.test, range(sum(self.task_sizes[:num_tasks])))

    def _of_classes(self, data: LabelledImages, indices: Sequence[int]) -> LabelledImages:
        places = [(data.labels == self.order[index]).nonzero().flatten() for index in indices]
        counts = torch.tensor([len(place) for place in places])
        labels = torch.repeat_interleave(torch.tensor(list(indices)), counts)
        return LabelledImages(data.images.subset(torch.cat(places)), labels)
