"""Test a learner on a folder of labelled images: nothing is learnt."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from grace.base.errors import GraceError
from grace.data.findings import Rules, judge_layout, refuse_first
from grace.data.folder_tree import ImageFile, scan
from grace.learner.gate import calibration_error, wilson
from grace.learner.prediction import FilePredictor

if TYPE_CHECKING:
    from grace.learner.learner import Learner


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

    @property
    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "num_images": self.num,
            "num_right": self.num_right,
            "accuracy": self.accuracy,
            "accuracy_interval": list(self.interval),
        }


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

    def facts(self, min_accuracy: float | None = None) -> dict[str, Any]:
        """Return everything for programs: shares in [0, 1], every confusion."""
        sure = sum(result.probability for result in self.results) / len(self.results)
        return {
            "model": str(self.model),
            "version": self.version,
            "images": str(self.images),
            **self.overall.facts,
            "min_accuracy_percent": min_accuracy,
            "reached": self.reaches(min_accuracy),
            "mean_probability": sure,
            "calibration_error": self.calibration_error,
            "classes": [{"name": own.name, **own.facts} for own in self.classes],
            "confusions": [
                {"class": pair.class_name, "predicted": pair.predicted, "num_images": pair.num}
                for pair in self.confusions
            ],
            "unreadable": list(self.problems),
            "notes": list(self.notes),
        }


def _counted(name: str, results: Sequence[ImageResult]) -> ClassResult:
    return ClassResult(name, len(results), sum(result.is_right for result in results))


def evaluate(
    model: "str | Path | Learner", images: str | Path, version: int | None = None
) -> Evaluated:
    """Predict the class of every image in a folder, and compare it with the image's folder.

    Images are read and predicted as by ``grace predict``. Classes that the learner does not know
    are left out with a note; images that cannot be read are listed.

    Args:
        model: a learner, or its home.
        images: folder of class folders; if it has ``train/`` and ``test/``, only ``test/`` is used.
        version: of the learner; ``None``: the one in use.

    Raises:
        GraceError: if there is no such learner or folder, or no image of a class that it knows can
            be read.
    """
    images = Path(images)
    files, notes = _files(images)
    # torch takes seconds to import: a folder that is wrong is refused before.
    from grace.learner.learner import Learner

    learner = model if isinstance(model, Learner) else Learner.load(model, version)
    predictor = FilePredictor(learner.answerer())
    live = set(learner.model.state.live_class_names)
    notes += _about_strangers(files, live)
    known = [file for file in files if file.class_name in live]
    if not known:
        raise GraceError(
            f"'{images}' has no images of a class that this learner knows",
            f"it knows {', '.join(sorted(live)[:12])}",
        )
    results: list[ImageResult] = []
    problems: list[str] = []
    class_of = {file.path: file.class_name for file in known}
    for batch in predictor.predict(list(class_of)):
        for prediction in batch:
            if prediction.problem is not None:
                problems.append(prediction.problem)
                continue
            best = prediction.guesses[0]
            own = class_of[prediction.path]
            results.append(ImageResult(prediction.path, own, best.class_name, best.probability))
    if not results:
        raise GraceError(f"no image of '{images}' can be read", problems[0])
    home = learner.home.path if learner.home else Path()
    return Evaluated(
        model=home,
        version=learner.version or 0,
        images=images,
        results=results,
        problems=problems,
        notes=notes,
    )


def _about_strangers(files: Sequence[ImageFile], live: Collection[str]) -> Iterator[str]:
    """Yield a note if there are images of classes that a learner does not know."""
    strangers = Counter(file.class_name for file in files if file.class_name not in live)
    if strangers:
        listed = [f"{name} ({count})" for name, count in sorted(strangers.items())[:12]]
        yield (
            f"{strangers.total()} images of classes that this learner does not know are left out: "
            + ", ".join([*listed, *(["…"] if len(strangers) > 12 else [])])
        )


def _files(root: Path) -> tuple[list[ImageFile], list[str]]:
    """Return the labelled files of a folder, and notes about what is not used."""
    tree = scan(root)
    layout = judge_layout(tree, Rules(skip_unreadable=True, skip_duplicates=True, image_size=None))
    refuse_first(layout, root)
    notes = [finding.text for finding in layout]
    if tree.test is not None:
        notes.append(f"only the images in '{tree.test}' are used")
    return sorted(tree.files(tree.test is not None)), notes
