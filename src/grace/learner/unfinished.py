"""Find the learner that an earlier call left, and clean up what an interrupted update left.

A learner without a version has learnt nothing. It is kept only if work of its first update is
saved; otherwise it is removed, so that the next call can create another learner.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grace.base import atomic
from grace.base.errors import BusyError, GraceError
from grace.learner.store import ModelStore


def find_learner(model: Path, *, discard: bool = False, dry_run: bool = False) -> ModelStore | None:
    """Return the learner in a directory; ``None`` if there is none or it was removed as empty.

    An interrupted update is dropped if ``discard`` says so or none of its work is saved.

    Args:
        model: the learner's home.
        discard: drop the interrupted update in any case.
        dry_run: drop and remove nothing, but return the same.

    Raises:
        GraceError: if the learner is damaged, or busy when something must be dropped.
    """
    if not (model / "model.json").exists():
        return None
    store = ModelStore.open(model)
    unwanted = discard or not has_work(store)
    if is_empty(store) and unwanted:
        if not dry_run:
            remove_empty(store)
        return None
    if store.pending() and unwanted and not dry_run:
        _drop_update(store)
    return store


def drop_update(model: Path) -> bool:
    """Drop the interrupted update of a learner; return ``False`` if there was none.

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
    """Remove a learner that has no version; any other learner stays.

    Other files in its directory stay, and then the directory too.
    """
    path = store.path
    with store.changing():
        if not is_empty(store):
            return
        store.discard()
        store.remove_unused()
        # Whenever this stops, what is left is still an empty learner, or no learner at all.
        with suppress(OSError):
            (path / "objects").rmdir()
        atomic.remove(path / "model.json")
        with suppress(OSError):
            (path / "versions").rmdir()
        # The lock goes last: another process may hold the new one as soon as it is gone.
        atomic.remove(path / "lock")
        with suppress(OSError):
            path.rmdir()


@contextmanager
def cleaned_after_failure(store: ModelStore) -> Iterator[None]:
    """If an update fails without saved work, remove what it left behind.

    With saved work nothing is removed, and an interruption gets a note that it can be continued.
    """
    try:
        yield
    except BusyError:
        raise
    except BaseException as error:
        if has_work(store):
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


def has_work(store: ModelStore) -> bool:
    """Return ``True`` if some work of an interrupted update is saved."""
    return store.pending() and any((store.path / "pending").glob("*.safetensors"))
