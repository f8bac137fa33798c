"""What a method decides in a task. Torch-free, so that what only reads histories is quick."""

from dataclasses import dataclass
from typing import Literal, final


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a method decided in a task.

    Args:
        verdict: "base", "grow", "compress", "compress (budget)" (there was no room to grow),
            "refresh", "update" or "skip".
        saturation: normalised effective rank that decided, in [0, 1].
        threshold: threshold it was compared with.
        merge_weight: weight w of the mergeable backbone in the student; none for a fresh student.
    """

    verdict: Literal["base", "grow", "compress", "compress (budget)", "refresh", "update", "skip"]
    saturation: float | None = None
    threshold: float | None = None
    merge_weight: float | None = None
