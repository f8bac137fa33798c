"""Test a learner on a folder of labelled images: nothing is learnt."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from grace.base.errors import GraceError
from grace.data.findings import Rules, judge_layout, refuse_first
from grace.data.folder_tree import ImageFile, scan
from grace.learner.evaluated import Evaluated, ImageResult
from grace.learner.learner import Learner
from grace.learner.prediction import FilePredictor, answerer_of


def evaluate(
    model: str | Path | Learner, images: str | Path, version: int | None = None
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
    learner = model if isinstance(model, Learner) else Learner.load(model, version)
    predictor = FilePredictor(answerer_of(learner))
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
