"""A ceiling on a learner's bytes on disk: refuse what does not fit, reserve what is needed."""

from collections.abc import Callable, Sequence
from typing import final

from grace.base import strict_json
from grace.base.errors import GraceError
from grace.data.memory import Room
from grace.learner.document import UpdateRecord
from grace.settings.experiment import ExperimentSettings

RESERVED_PER_LEARNER = 4_500
"""Bytes: the fixed part of the document, the work of its last update, the method's values."""
RESERVED_PER_UPDATE = 2_500
"""Bytes: an update's record (about 600), its reason (up to 500), the entries of new parts."""
RESERVED_PER_CLASS = 615
"""Bytes: headers of a class's two files (130 each), their entries (110 each), its counts."""
RESERVED_FOR_FEATURES = 240
"""Bytes: longer headers of a class's two files if they also hold features."""
RESERVED_PER_RESULT = 75
"""Bytes: the numbers of a class's held-out images in an update's record."""


@final
class Ceiling:
    """The number of bytes that one version of a learner may take on disk.

    Weights, method state and images are counted exactly; for the document and the headers of image
    files a fixed number of bytes is reserved for each class and update: see ``reserved_bytes``.

    Args:
        max_mb: the ceiling in megabytes (10⁶ bytes); a higher one keeps more exemplars.
        image_bytes: bytes of one image's pixels.
    """

    def __init__(self, max_mb: float, image_bytes: int) -> None:
        self.num_bytes = int(max_mb * 1_000_000)
        self._image_bytes = image_bytes

    def room(
        self,
        held_out_bytes: int,
        reserved: int,
        score_bytes: Callable[[int, int], int] | None = None,
    ) -> Room:
        """Return the bytes left for weights, method state and exemplars together; see ``Room``."""
        left = max(0, self.num_bytes - held_out_bytes - reserved)
        return Room(left, self._image_bytes, score_bytes)

    def check(
        self,
        weights: int,
        num_exemplars: int,
        held_out_bytes: int,
        reserved: int,
        *,
        what: str = "this update",
        is_new: bool = False,
    ) -> None:
        """Refuse an update if even its smallest result does not fit.

        Args:
            weights: bytes of weights and method state after the update.
            num_exemplars: smallest number of exemplars to keep, one of each class.
            held_out_bytes: bytes of the held-out images.
            reserved: bytes reserved for the document and headers.
            what: what needs the bytes, in words.
            is_new: the backbone can still be chosen.

        Raises:
            GraceError: if it does not fit; the message names the smallest ceiling that is enough.
        """
        needed = weights + num_exemplars * self._image_bytes + held_out_bytes + reserved
        if needed > self.num_bytes:
            # The settings in the document name the ceiling, which may then have more digits.
            enough = in_mb(needed + 1_000)
            would_fit = needed - held_out_bytes <= self.num_bytes
            remedies = [
                *["hold out fewer images by memory.validation"] * would_fit,
                *["choose a smaller backbone.name"] * is_new,
                f"set memory.max_mb={enough}",
            ]
            raise GraceError(
                f"{what} needs at least {enough} MB: {in_mb(weights)} MB of weights and "
                f"state of the method, {num_exemplars} exemplars, held-out images; the ceiling is "
                f"{in_mb(self.num_bytes)} MB",
                ", or ".join(remedies),
            )


def in_mb(num_bytes: int) -> str:
    """Return bytes as megabytes, rounded up to three places: a ceiling that is enough."""
    return f"{-(-num_bytes // 1000) / 1000:.3f}"


def reserved_bytes(
    settings: ExperimentSettings,
    history: Sequence[UpdateRecord],
    new_names: Sequence[str],
    revived_names: Sequence[str],
) -> int:
    """Return an upper bound on the bytes of the next version's document and image headers.

    The user's texts, settings and class names, are counted as JSON; everything else is a fixed
    number of bytes, so that the bound does not depend on the clock's digits.

    Args:
        settings: the learner's settings.
        history: its updates so far.
        new_names: new classes of the next update.
        revived_names: forgotten classes of the next update.
    """
    earlier = [name for update in history for name in update.new_class_names]
    revived = [name for update in history for name in update.revived_class_names]
    class_names = [*earlier, *new_names]
    num_results = num_known = 0
    for num_new in [*(len(update.new_class_names) for update in history), len(new_names)]:
        num_known += num_new
        num_results += num_known
    # The document holds a class's name twice: in its classes, and in the update that brought it.
    names = [*class_names, *class_names, *revived, *revived_names]
    return (
        RESERVED_PER_LEARNER
        + RESERVED_PER_UPDATE * (len(history) + 1)
        + RESERVED_PER_CLASS * len(class_names)
        + RESERVED_PER_RESULT * num_results
        + len(strict_json.dump([settings.model_dump(mode="json"), names]))
    )
