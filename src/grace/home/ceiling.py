"""A ceiling on a learner's bytes: what fits below it, and what would."""

from typing import final

from grace.data.memory import Room
from grace.text.refusals import GraceError


@final
class Ceiling:
    """Bytes that one version of a learner may take on disk.

    Weights, method state and images are counted exactly; for the document and the headers of the
    files a bound is set aside, which grows with classes and updates.

    Args:
        max_mb: the ceiling in megabytes (10⁶ bytes).
        image_bytes: bytes of one image's pixels.
    """

    def __init__(self, max_mb: float, image_bytes: int) -> None:
        self.num_bytes = int(max_mb * 1_000_000)
        self._image_bytes = image_bytes

    def room(self, held_out_bytes: int, aside: int) -> Room:
        """Return what weights, method state and exemplars may take together."""
        return Room(max(0, self.num_bytes - held_out_bytes - aside), self._image_bytes)

    def check(self, weights: int, num_exemplars: int, held_out_bytes: int, aside: int) -> None:
        """Refuse an update whose smallest outcome would not fit.

        Args:
            weights: bytes of weights and method state once it is learnt.
            num_exemplars: fewest exemplars that must be kept, one of each class.
            held_out_bytes: bytes of the held-out images.
            aside: bytes set aside for the document and headers.

        Raises:
            ValueError: naming the smallest ceiling that would do.
        """
        needed = weights + num_exemplars * self._image_bytes + held_out_bytes + aside
        if needed > self.num_bytes:
            # Times and sizes in the document may be longer when it is learnt again.
            enough = in_mb(needed + 1_000 + 4 * num_exemplars)
            raise GraceError(
                f"this update needs at least {enough} MB: {in_mb(weights)} MB of weights and "
                f"state of the method, {num_exemplars} exemplars, held-out images; the ceiling is "
                f"{in_mb(self.num_bytes)} MB",
                f"raise memory.max_mb (--max-mb) to {enough}, hold out fewer images, or choose a "
                "smaller backbone",
            )


def in_mb(num_bytes: int) -> str:
    """Write bytes as megabytes, rounded up to three places, so that it can be used as a ceiling."""
    return f"{-(-num_bytes // 1000) / 1000:.3f}"


def set_aside(document_bytes: int, name_bytes: int, num_classes: int, num_present: int) -> int:
    """Bound the bytes of the next document and of the headers of all image files.

    Args:
        document_bytes: of the present document, 0 before the first.
        name_bytes: of the class names that the history will tell, as JSON.
        num_classes: classes seen after the update.
        num_present: classes that have images in the update.

    Returns:
        Bytes: headers of 130 for each of a class's two files; two entries of 110 in the document
        and a count for each class of the update; those names twice; and 8,000 for the rest.
    """
    return 8_000 + document_bytes + 2 * name_bytes + 260 * num_classes + 250 * num_present
