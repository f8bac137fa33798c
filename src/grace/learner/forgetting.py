"""Find the versions of a saved learner that know a class. Torch-free."""

from grace.home.store import ModelStore
from grace.text.nearest import did_you_mean
from grace.text.refusals import GraceError, Setting


def versions_to_purge(store: ModelStore, name: str) -> list[int]:
    """Return the numbers of the versions that still know a class.

    Args:
        store: the learner's home.
        name: the class's name.

    Raises:
        GraceError: if no version ever had the class, or it may not be forgotten now.
    """
    documents, current = store.documents(), store.current()
    known = {name for document in documents for name in document.class_names}
    if name not in known:
        raise GraceError(f"'{store.path}' has no class '{name}'{did_you_mean(name, sorted(known))}")
    if store.pending():
        raise GraceError(
            f"an update of '{store.path}' was interrupted and may still use the images",
            "finish it",
            setting=Setting("discard", "true"),
        )
    for document in documents:
        if document.number == current and list(document.live_class_names) == [name]:
            raise GraceError(
                f"'{name}' is the last class of '{store.path}'", "teach it another first"
            )
    return [document.number for document in documents if name in document.live_class_names]
