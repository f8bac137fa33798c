"""Take things away from a home: old versions, and the images of a class. Torch-free."""

from collections.abc import Collection, Sequence

from grace.base.errors import GraceError
from grace.base.words import did_you_mean_one_of
from grace.learner.document import Document
from grace.learner.store import ModelStore, to_drop


def keep_newest(store: ModelStore, count: int) -> Sequence[int]:
    """Remove all versions but the newest ones, the one in use, and what an update starts from.

    Damaged versions are removed in any case.

    Args:
        store: the learner's home.
        count: number of newest versions to keep; more can be rolled back to, and take more bytes.

    Returns:
        The numbers of the removed versions.
    """
    with store.changing():
        numbers, survey = store.numbers(), store.survey()
        kept = {*numbers[max(0, len(numbers) - count) :], store.current(), store.pending_parent()}
        gone = [n for n in numbers if n not in kept or n in survey.damaged]
        store.prune(gone)
    return gone


def keep_within(store: ModelStore, max_mb: float) -> Sequence[int]:
    """Remove the oldest versions until all of them together take no more than a ceiling.

    Damaged versions go first. The version in use stays, and what an unfinished update starts from;
    the version before it goes last.

    Args:
        store: the learner's home.
        max_mb: megabytes (10⁶ bytes) for all versions together; fewer keep fewer versions.

    Returns:
        The numbers of the removed versions.

    Raises:
        GraceError: for a negative ceiling.
    """
    if not max_mb >= 0:
        raise GraceError(f"{max_mb:g} MB for all versions", "give a number of megabytes")
    with store.changing():
        survey = store.survey()
        if bytes_of(survey.documents) <= max_mb * 1_000_000:
            return []
        kept = {survey.current, store.pending_parent()}
        before = {made.parent for made in survey.documents if made.number == survey.current}
        old = [made.number for made in survey.documents if made.number not in kept]
        gone = sorted(survey.damaged)
        for number in sorted(old, key=lambda number: (number in before, number)):
            left = [made for made in survey.documents if made.number not in gone]
            if bytes_of(left) <= max_mb * 1_000_000:
                break
            gone.append(number)
        store.prune(sorted(gone))
    return sorted(gone)


def bytes_of(documents: Collection[Document]) -> int:
    """Return the bytes of versions together: their documents, and shared objects once."""
    objects = {ref.sha256: ref.bytes for made in documents for ref in made.objects.values()}
    return sum(objects.values()) + sum(len(made.dump()) for made in documents)


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
