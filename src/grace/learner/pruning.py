"""Remove old versions of a learner: all but the newest, or as many as must go. Torch-free."""

from collections.abc import Collection, Sequence

from grace.base.errors import GraceError
from grace.learner.document import Document
from grace.learner.store import ModelStore


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
