"""Test a learner on a folder of labelled images: nothing is learnt."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from grace.base.errors import GraceError
from grace.base.words import shortened
from grace.data.decoding import Reading
from grace.data.findings import sound_tree
from grace.learner.gate import calibration_error, wilson
from grace.learner.prediction import predict_files

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
@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The results of a learner on a folder of labelled images."""

    model: Path
    """The learner's home."""
    version: int
    images: Path
    """The folder."""
    results: Sequence[ImageResult]
    """One for each readable image, at least one."""
    unreadable: Sequence[str] = ()
    """One line for each image that could not be read."""
    notes: Sequence[str] = ()
    """What was left out, and why."""

    @property
    def accuracy(self) -> float:
        """Share of images that are right."""
        return sum(result.is_right for result in self.results) / len(self.results)

    @property
    def mistakes(self) -> list[ImageResult]:
        """The images that are wrong, those of the highest probability first."""
        wrong = [result for result in self.results if not result.is_right]
        return sorted(wrong, key=lambda result: (-result.probability, str(result.path)))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Everything for programs: shares in [0, 1], the worst class and confusion first."""
        by_class: dict[str, list[ImageResult]] = defaultdict(list)
        for result in self.results:
            by_class[result.class_name].append(result)
        classes = [{"name": name, **_counted(results)} for name, results in by_class.items()]
        confusions = Counter((result.class_name, result.predicted) for result in self.mistakes)
        return {
            "model": str(self.model),
            "version": self.version,
            "images": str(self.images),
            **_counted(self.results),
            "calibration_error": calibration_error(
                [result.probability for result in self.results],
                [result.is_right for result in self.results],
            ),
            "classes": sorted(classes, key=lambda own: (own["accuracy"], own["name"])),
            "confusions": [
                {"class": name, "predicted": predicted, "num_images": num}
                for (name, predicted), num in sorted(
                    confusions.items(), key=lambda item: (-item[1], item[0])
                )
            ],
            "unreadable": list(self.unreadable),
            "notes": list(self.notes),
        }


def _counted(results: Sequence[ImageResult]) -> dict[str, Any]:
    num_right = sum(result.is_right for result in results)
    return {
        "num_images": len(results),
        "num_right": num_right,
        "accuracy": num_right / len(results),
        "accuracy_interval": list(wilson(num_right, len(results))),
    }


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
    tree, notes = sound_tree(images, Reading())
    if tree.test is not None:
        notes.append(f"only the images in '{tree.test}' are used")
    # torch takes seconds to import: a folder that is wrong is refused before.
    from grace.learner.learner import Learner

    learner = model if isinstance(model, Learner) else Learner.load(model, version)
    answerer, live = learner.answerer(), set(learner.model.state.live_class_names)
    files = [file for file in tree.files if file.is_test == (tree.test is not None)]
    if strangers := Counter(file.class_name for file in files if file.class_name not in live):
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(strangers.items()))
        what = f"{strangers.total()} images of classes that this learner does not know"
        notes.append(f"{what} are left out: {shortened(listed, 300)}")
    class_of = {file.path: file.class_name for file in files if file.class_name in live}
    if not class_of:
        raise GraceError(
            f"'{images}' has no images of a class that this learner knows",
            f"it knows {shortened(', '.join(sorted(live)), 300)}",
        )
    results: list[ImageResult] = []
    unreadable: list[str] = []
    for found in predict_files(answerer, list(class_of)):
        if found.problem is not None:
            unreadable.append(found.problem)
            continue
        best, own = found.guesses[0], class_of[found.path]
        results.append(ImageResult(found.path, own, best.class_name, best.probability))
    if not results:
        raise GraceError(f"no image of '{images}' can be read", unreadable[0])
    return Evaluated(
        model=learner.home.path if learner.home else Path(),
        version=learner.version or 0,
        images=images,
        results=results,
        unreadable=unreadable,
        notes=notes,
    )
