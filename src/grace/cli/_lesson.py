"""One call of ``grace learn``: a learner is found or made, and taught."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer

from grace.cli._creation import Wish
from grace.cli._homes import find, is_empty, tidied
from grace.configs.experiment import ExperimentSettings
from grace.home.document import Document
from grace.home.store import ModelStore
from grace.storage import atomic
from grace.text.refusals import GraceError

# torch is imported where images are, so that what is wrong with settings is told at once.
if TYPE_CHECKING:
    from grace.cli.progress import RichProgress
    from grace.data.update_folder import UpdateFolder
    from grace.learner.learner import Learner

REMEDIES = {
    "data.skip_unreadable": "use --skip-unreadable",
    "data.skip_duplicates": "use --skip-duplicates",
    "data.image_size": "use --image-size",
}
"""What a person does instead of setting a path."""


@final
@dataclass(frozen=True, kw_only=True)
class Teaching:
    """What is to be learnt, and how a call goes about it."""

    images: Path
    max_drop: float | None = None
    skip_unreadable: bool = False
    skip_duplicates: bool = False
    discard: bool = False
    again: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a call came to."""

    model: Path
    document: Document
    """The version that holds the update."""
    is_new: bool
    """Whether that was made by this call; it may have been there."""
    in_use: int
    """The version in use now."""
    was_in_use: int | None
    class_names: Sequence[str]
    """All classes that images were given of."""

    @property
    def is_rejected(self) -> bool:
        """Whether the gate keeps the update out of use; one may have put it in use since."""
        return self.document.status == "rejected" and self.document.number > self.in_use


def teach(model: Path, wish: Wish, teaching: Teaching, progress: "RichProgress") -> Lesson:
    """Make a learner or update the one that is there.

    Raises:
        ValueError: for anything wrong with the settings, the images or the learner.
    """
    home = find(model, discard=teaching.discard)
    if home is None:
        _refuse_taken(model)
        settings, changes = wish.settings(), {}
    else:
        wanted = wish.refuse_another(home.creation.settings, model, begun=is_empty(home))
        settings, changes = home.creation.settings, _changes(home, wish, wanted)
    _refuse_inside(model, teaching.images)
    progress.waiting("reading")
    folder = _read(home, settings, teaching)
    for note in (*folder.notes, *_unused(folder, settings, teaching)):
        typer.echo(f"warning: {note}", err=True)
    if home is None:
        learner = _made(model, settings, folder, teaching, progress)
        assert learner.home is not None
        return _taught(learner, learner.home, folder, teaching, progress)
    found = _known_already(home, folder, teaching)
    if found is not None:
        return _lesson(home, found, home.current(), folder)
    from grace.learner.learner import Learner

    learner = Learner.load(model, **changes, progress=progress)
    return _taught(learner, home, folder, teaching, progress)


def _refuse_taken(model: Path) -> None:
    """Refuse early what ``ModelStore.create`` would refuse once all images are read."""
    if model.exists() and (
        not model.is_dir()
        or any(path.name != "versions" and not atomic.is_leftover(path) for path in model.iterdir())
    ):
        raise GraceError(f"'{model}' exists already and is no learner", "choose another --model")


def _refuse_inside(model: Path, images: Path) -> None:
    from grace.data.folder_tree import split_folders

    for part in split_folders(images):
        if part is not None and model.resolve().is_relative_to(part.resolve()):
            raise GraceError(
                f"'{model}' lies in '{part}', where it would be taken for a class",
                "choose another --model",
            )


def _changes(home: ModelStore, wish: Wish, wanted: ExperimentSettings) -> dict[str, Any]:
    """What a call changes of how a learner goes on: how the work is carried out, and recipes."""
    from grace.learner.saving import carried_out_here

    number = home.current()
    saved = home.creation.settings if number is None else home.document(number).settings
    return {
        "engine": wish.engine(wanted, carried_out_here(saved, None).engine),
        "method": wish.method(wanted, saved.method),
    }


def _read(
    home: ModelStore | None, settings: ExperimentSettings, teaching: Teaching
) -> "UpdateFolder":
    from grace.data.update_folder import load_update

    channels, size = settings.data.channels or 3, settings.data.image_size
    if home is not None:
        depth, height, width = home.creation.shape
        channels = 1 if depth == 1 else 3
        size = height if size is not None and height == width else None
    try:
        return load_update(
            teaching.images,
            channels,
            size,
            skip_unreadable=teaching.skip_unreadable or settings.data.skip_unreadable,
            skip_duplicates=teaching.skip_duplicates or settings.data.skip_duplicates,
        )
    except GraceError as error:
        raise GraceError(error.worded(REMEDIES)) from None


def _unused(
    folder: "UpdateFolder", settings: ExperimentSettings, teaching: Teaching
) -> Iterator[str]:
    wanted = settings.memory.validation
    most = max(Counter(folder.test_labels).values(), default=0)
    if most > wanted:
        yield (
            f"of the test images only {wanted} of each class are used, which is what the learner "
            f"holds out (--validation); '{folder.test_labels[0]}' and others have up to {most}"
        )
    if teaching.max_drop is not None and not wanted:
        yield "--max-drop has no effect: the learner holds no images out (--validation 0)"


def _given(folder: "UpdateFolder") -> dict[str, Any]:
    validation = None
    if folder.test_images is not None:
        validation = (folder.test_images, folder.test_labels)
    return {"images": folder.images, "labels": folder.labels, "validation": validation}


def _made(
    model: Path,
    settings: ExperimentSettings,
    folder: "UpdateFolder",
    teaching: Teaching,
    progress: "RichProgress",
) -> "Learner":
    """Make a learner; what can be refused without it is refused before."""
    from grace.learner.learner import Learner
    from grace.learner.update_input import check_input

    shape = folder.images.shape
    check_input(**_given(folder), shape=shape, max_drop=teaching.max_drop)
    if len(set(folder.labels)) < 2:
        raise GraceError(
            f"'{teaching.images}' has images of one class, '{folder.labels[0]}': the first update "
            "of a learner needs at least two"
        )
    return Learner.create(settings, shape=shape, directory=model, progress=progress)


def _known_already(home: ModelStore, folder: "UpdateFolder", teaching: Teaching) -> Document | None:
    """Find the version in use, or one it came from, that learnt these very images."""
    number = home.current()
    if number is None or teaching.again:
        return None
    # What was learnt and forgotten since may be learnt anew.
    if not set(folder.labels) <= set(home.document(number).live_class_names):
        return None
    from grace.learner.update_input import check_input

    numbers, digests = home.numbers(), dict[float | None, str]()
    while number in numbers:
        document = home.document(number)
        drop = document.history[-1].max_drop
        if drop not in digests:
            given = check_input(**_given(folder), shape=home.creation.shape, max_drop=drop)
            digests[drop] = given.digest
        if document.digest == digests[drop]:
            return document
        # A forged document could name itself.
        if document.parent is None or document.parent >= number:
            return None
        number = document.parent
    return None


def _taught(
    learner: "Learner",
    home: ModelStore,
    folder: "UpdateFolder",
    teaching: Teaching,
    progress: "RichProgress",
) -> Lesson:
    before, numbers = home.current(), home.numbers()
    new = sorted(set(folder.labels) - set(learner.class_names))
    progress.update_started(len(learner.history) + 1, new)
    with tidied(home):
        learner.update(**_given(folder), max_drop=teaching.max_drop, again=teaching.again)
    number = home.numbers()[-1]
    is_new = number not in numbers
    return _lesson(home, home.document(number), before, folder, is_new=is_new)


def _lesson(
    home: ModelStore,
    document: Document,
    was_in_use: int | None,
    folder: "UpdateFolder",
    *,
    is_new: bool = False,
) -> Lesson:
    current = home.current()
    assert current is not None
    return Lesson(
        model=home.path,
        document=document,
        is_new=is_new,
        in_use=current,
        was_in_use=was_in_use,
        class_names=sorted(set(folder.labels)),
    )
