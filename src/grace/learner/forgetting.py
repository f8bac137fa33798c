"""Find the versions of a saved learner that know a class. Torch-free."""

from collections.abc import Sequence

from grace.base.errors import GraceError
from grace.base.words import did_you_mean_one_of
from grace.learner.store import ModelStore, to_drop


def versions_to_purge(store: ModelStore, name: str) -> list[int]:
    """Return the numbers of the versions that still know a class.

    Args:
        store: the learner's home.
        name: the class's name.

    Raises:
        GraceError: if no version ever had the class, or it may not be forgotten now.
    """
    documents, current = store.documents(), store.current()
    if not any(name in document.class_names for document in documents):
        live = dict.fromkeys(own for made in documents for own in made.live_class_names)
        raise GraceError(f"'{store.path}' has no class '{name}'{did_you_mean_one_of(name, live)}")
    if store.pending():
        raise GraceError(
            f"an update of '{store.path}' was interrupted and may still use the images",
            f"finish it, or {to_drop(store.path)}",
        )
    for document in documents:
        if document.number == current and list(document.live_class_names) == [name]:
            raise GraceError(
                f"'{name}' is the last class of '{store.path}'", "teach it another first"
            )
    return [document.number for document in documents if name in document.live_class_names]


def refuse_unknown(store: ModelStore | None, live: Sequence[str], name: str) -> None:
    """Refuse to forget a class that a learner does not know, or that is its last one.

    Args:
        store: the learner's home, if it has one; a change that an earlier process began is finished
            first.
        live: names of the classes that the learner knows.
        name: the class's name.

    Raises:
        GraceError: if no version has this class, or it is the last class of this learner.
    """
    unfinished = store.finish() if store else None
    elsewhere = store.live_class_names() if store else set()
    if unfinished is not None and unfinished.class_names == (name,):
        elsewhere.add(name)  # An earlier process began it; it is done now.
    if name not in {*live, *elsewhere}:
        raise GraceError(f"this learner has no class '{name}'{did_you_mean_one_of(name, live)}")
    if live == [name]:
        raise GraceError(f"'{name}' is the last class of this learner", "teach it another first")
