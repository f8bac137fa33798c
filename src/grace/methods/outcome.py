"""The decision of a method in a task. Torch-free, so that histories are read fast."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from pydantic import Field


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The decision of a method in a task.

    Args:
        verdict: "base", "grow", "compress", "compress (budget)" (there was no room to grow),
            "refresh", "update" or "skip".
        saturation: normalised effective rank that was compared, in [0, 1].
        threshold: that it was compared with.
        merge_weight: weight w of the mergeable backbone in the student; ``None`` if the student
            started fresh.
        reason: why, as a short clause in lower case that completes "grew: …", "compressed: …",
            "trained afresh: …" or "trained further: …"; empty if the method gives none.
    """

    verdict: Literal["base", "grow", "compress", "compress (budget)", "refresh", "update", "skip"]
    saturation: float | None = None
    threshold: float | None = None
    merge_weight: float | None = None
    reason: Annotated[str, Field(max_length=500)] = ""
