"""A learner's directory between two calls: worth keeping, or only in the way of the next.

A learner that has no version has learnt nothing. It is worth keeping for the work done on its first
update alone; without any it is taken back, so that the next call can ask for another one.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from grace.home.store import ModelStore
from grace.storage import atomic
from grace.text.refusals import BusyError


def find(model: Path, *, discard: bool = False) -> ModelStore | None:
    """Find a learner worth keeping; drop its unfinished update if that is unwanted or idle.

    Args:
        model: directory.
        discard: drop the unfinished update whatever it has come to.

    Raises:
        ValueError: if the learner is damaged, or busy while something is to be dropped.
    """
    if not (model / "model.json").exists():
        return None
    home = ModelStore.open(model)
    unwanted = discard or not _has_work(home)
    if is_empty(home) and unwanted:
        take_back(home)
        return None
    if home.pending() and unwanted:
        _drop_update(home)
    return home


def is_empty(home: ModelStore) -> bool:
    """Whether a learner has no version."""
    return not home.numbers() and home.current() is None


def take_back(home: ModelStore) -> None:
    """Remove a learner that has no version; one that has stays as it is.

    What is no learner's in its folder stays, and the folder then too.
    """
    path = home.path
    with home.changing():
        if not is_empty(home):
            return
        home.discard()
        home.remove_unused()
        # Whenever this stops, the folder is still such a learner, or nothing that is in the way.
        with suppress(OSError):
            (path / "objects").rmdir()
        for name in ("lock", "model.json"):
            atomic.remove(path / name)
        with suppress(OSError):
            (path / "versions").rmdir()
            path.rmdir()


@contextmanager
def tidied(home: ModelStore) -> Iterator[None]:
    """When an update fails, leave nothing behind that would only be in the way of the next."""
    try:
        yield
    except BusyError:
        raise
    except BaseException as error:
        if _has_work(home):
            if isinstance(error, KeyboardInterrupt):
                typer.echo("the same command will go on from here", err=True)
            raise
        with suppress(ValueError, OSError):
            if is_empty(home):
                take_back(home)
            elif home.pending():
                _drop_update(home)
        raise


def _drop_update(home: ModelStore) -> None:
    with home.changing():
        home.discard()


def _has_work(home: ModelStore) -> bool:
    """Whether an unfinished update has come so far that something of it is kept."""
    return home.pending() and any((home.path / "pending").glob("*.safetensors"))
