"""Find the versions that have learnt the same images before. Torch-free."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import final

from grace.base.errors import DamagedError
from grace.learner.document import Document
from grace.learner.gate import Limits
from grace.learner.setting_changes import SettingChange
from grace.learner.store import ModelStore


@final
class LearntBefore:
    """The versions of a home that have learnt given images.

    Args:
        store: the home.
        labels: class names of the images.
        digest: returns the digest of the update with these images under some limits.
    """

    def __init__(
        self, store: ModelStore, labels: Iterable[str], digest: Callable[[Limits], str]
    ) -> None:
        self._store = store
        self._labels = set(labels)
        self._digest = digest
        self._digests: dict[Limits, str] = {}

    def in_use(self) -> Document | None:
        """Return the version that learnt them: the one in use, or one of its parents."""
        number = self._store.current()
        # A class that was forgotten since then may be learnt again.
        if number is None or not self._knows_all(self._store.document(number)):
            return None
        numbers = self._store.numbers()
        while number in numbers:
            try:
                document = self._store.document(number)
            except DamagedError:
                if number == self._store.current():
                    raise
                return None
            if self._is_of(document):
                return document
            # A forged document could name itself as its parent: the loop must end.
            if document.parent is None or document.parent >= number:
                return None
            number = document.parent
        return None

    def elsewhere(self, changed: Sequence[SettingChange]) -> Document | None:
        """Return an accepted version that learnt them and was rolled back from.

        The first choice is one that ``continues`` the version in use.

        Args:
            changed: settings that would differ from those of the version in use.
        """
        found = [
            made
            for made in self._store.documents()
            if made.status == "accepted" and self._is_of(made) and self._knows_all(made)
        ]
        return max(found, key=lambda m: (self.continues(m, changed), m.number), default=None)

    def rejected(self, changed: Sequence[SettingChange], limits: Limits) -> Document | None:
        """Return the newest rejected version that learnt them, if they would be learnt anew.

        Under the limits that rejected it, it is the answer, and nothing is learnt.

        Args:
            changed: settings that would differ from those of the version in use.
            limits: what the update may cost now.
        """
        found = [
            made
            for made in self._store.documents()
            if made.status == "rejected" and self._is_of(made) and self._knows_all(made)
        ]
        if any(self.continues(m, changed) and m.history[-1].limits == limits for m in found):
            return None
        return max(found, key=lambda m: (self.continues(m, changed), m.number), default=None)

    def continues(self, document: Document, changed: Sequence[SettingChange]) -> bool:
        """Return ``True`` if to learn the images again would give the same version.

        Args:
            document: a version that learnt them.
            changed: settings that would differ from those of the version in use.
        """
        return document.parent == self._store.current() and document.changed == tuple(changed)

    def _knows_all(self, document: Document) -> bool:
        return self._labels <= set(document.live_class_names)

    def _is_of(self, document: Document) -> bool:
        limits = document.history[-1].limits
        if limits not in self._digests:
            self._digests[limits] = self._digest(limits)
        return document.digest == self._digests[limits]


def note_on(other: Document, store: ModelStore) -> str:
    """Say that another version has learnt the images, and how to return to it."""
    came = "as the first one" if other.parent is None else f"after version {other.parent}"
    model = shlex.quote(str(store.path))
    if other.status == "rejected":
        return (
            f"version {other.number} has learnt these images already, {came}, and was rejected: "
            f"'grace rollback {model} {other.number}' puts it in use"
        )
    return (
        f"version {other.number} has learnt these images already, {came}, and is not in use: "
        f"'grace rollback {model} {other.number}' returns to it"
    )
