"""The result of testing a learner on labelled image files. Torch-free."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from grace.learner.statistics import calibration_error, wilson


@final
@dataclass(frozen=True)
class ImageResult:
    """The prediction for one image file whose class is known."""

    path: Path
    class_name: str
    """Its class."""
    predicted: str
    """The most probable class."""
    probability: float
    """Of the predicted class, in [0, 1]."""

    @property
    def is_right(self) -> bool:
        """``True`` if the predicted class is the image's class."""
        return self.predicted == self.class_name


@final
@dataclass(frozen=True)
class ClassResult:
    """The accuracy on the images of one class."""

    name: str
    num: int
    num_right: int

    @property
    def accuracy(self) -> float:
        """Share of images that are right."""
        return self.num_right / self.num

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the accuracy's 95 % interval (Wilson)."""
        return wilson(self.num_right, self.num)


@final
@dataclass(frozen=True)
class Confusion:
    """Images of one class that are predicted as another one."""

    class_name: str
    predicted: str
    num: int


@final
@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The results of a learner on a folder of labelled images.

    Args:
        model: the learner's home.
        version: number of its version.
        images: the folder.
        results: one for each readable image, at least one.
        problems: one line for each image that could not be read.
        notes: what was left out, and why.
    """

    model: Path
    version: int
    images: Path
    results: Sequence[ImageResult]
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()

    @cached_property
    def overall(self) -> ClassResult:
        """The accuracy on all images."""
        return _counted("all", self.results)

    @cached_property
    def classes(self) -> list[ClassResult]:
        """The accuracy on each class, the worst first."""
        own: dict[str, list[ImageResult]] = {}
        for result in self.results:
            own.setdefault(result.class_name, []).append(result)
        counted = [_counted(name, results) for name, results in own.items()]
        return sorted(counted, key=lambda result: (result.accuracy, result.name))

    @cached_property
    def confusions(self) -> list[Confusion]:
        """Each pair of a class and a wrong prediction, the most frequent first."""
        pairs = Counter((r.class_name, r.predicted) for r in self.mistakes)
        listed = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
        return [Confusion(name, predicted, num) for (name, predicted), num in listed]

    @cached_property
    def mistakes(self) -> list[ImageResult]:
        """The images that are wrong, those of the highest probability first."""
        wrong = [result for result in self.results if not result.is_right]
        return sorted(wrong, key=lambda result: (-result.probability, str(result.path)))

    @cached_property
    def calibration_error(self) -> float:
        """How far probability and accuracy are apart, in [0, 1], over 15 bins."""
        sure = [result.probability for result in self.results]
        return calibration_error(sure, [result.is_right for result in self.results])

    def reaches(self, min_accuracy: float | None) -> bool:
        """Return ``True`` if the accuracy is at least ``min_accuracy`` percent; ``None``: any."""
        return min_accuracy is None or 100 * self.overall.accuracy >= min_accuracy - 1e-9


def _counted(name: str, results: Sequence[ImageResult]) -> ClassResult:
    return ClassResult(name, len(results), sum(result.is_right for result in results))
