"""A learner between two calls: find it, and remove what would only be in the way of the next call.

A learner without a version has learnt nothing. It is kept only for the work done on its first
update; without any such work it is removed, so that the next call can ask for another learner.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grace.home.store import ModelStore
from grace.storage import atomic
from grace.text.refusals import BusyError, GraceError


def find_learner(model: Path, *, discard: bool = False) -> ModelStore | None:
    """Find a learner worth keeping; drop its interrupted update if that is unwanted or has no work.

    Args:
        model: directory.
        discard: drop the interrupted update in any case.

    Raises:
        GraceError: if the learner is damaged, or busy while something is to be dropped.
    """
    if not (model / "model.json").exists():
        return None
    store = ModelStore.open(model)
    unwanted = discard or not _has_work(store)
    if is_empty(store) and unwanted:
        remove_empty(store)
        return None
    if store.pending() and unwanted:
        _drop_update(store)
    return store


def drop_update(model: Path) -> bool:
    """Drop the interrupted update of a learner; return ``False`` where there was none.

    Raises:
        GraceError: if there is no such learner, or it is damaged or busy.
    """
    was_pending = ModelStore.open(model).pending()
    find_learner(model, discard=True)
    return was_pending


def is_empty(store: ModelStore) -> bool:
    """Return ``True`` if a learner has no version."""
    return not store.numbers() and store.current() is None


def remove_empty(store: ModelStore) -> None:
    """Remove a learner that has no version; one that has stays as it is.

    Files in its folder that are not the learner's stay, and then the folder too.
    """
    path = store.path
    with store.changing():
        if not is_empty(store):
            return
        store.discard()
        store.remove_unused()
        # Whenever this stops, the folder is still such a learner, or nothing that is in the way.
        with suppress(OSError):
            (path / "objects").rmdir()
        for name in ("lock", "model.json"):
            atomic.remove(path / name)
        with suppress(OSError):
            (path / "versions").rmdir()
            path.rmdir()


@contextmanager
def cleaned_after_failure(store: ModelStore) -> Iterator[None]:
    """When an update fails, leave nothing behind that would only be in the way of the next.

    An interruption that can be gone on from says so in its notes.
    """
    try:
        yield
    except BusyError:
        raise
    except BaseException as error:
        if _has_work(store):
            if isinstance(error, KeyboardInterrupt):
                error.add_note("the same command will go on from here")
            raise
        with suppress(GraceError, OSError):
            if is_empty(store):
                remove_empty(store)
            elif store.pending():
                _drop_update(store)
        raise


def _drop_update(store: ModelStore) -> None:
    with store.changing():
        store.discard()


def _has_work(store: ModelStore) -> bool:
    """Return ``True`` if something of an interrupted update's work is on disk."""
    return store.pending() and any((store.path / "pending").glob("*.safetensors"))
