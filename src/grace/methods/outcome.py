"""The decision of a method in a task. Torch-free, so that histories are read fast."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from pydantic import Field

MethodVerdict = Literal[
    "start", "grow", "compress", "compress (budget)", "refresh", "train", "skip"
]

MeasureKey = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The decision of a method in a task.

    Args:
        verdict: "start" (a new network), "grow" (one backbone more), "compress", "compress
            (budget)" (there was no room to grow), "refresh" (no class is new), "train" (the
            network as it is) or "skip" (nothing).
        saturation: normalised effective rank that was compared, in [0, 1].
        threshold: that it was compared with.
        merge_weight: weight w of the mergeable backbone in the student; ``None`` if the student
            started fresh.
        reason: why, as a short clause in lower case that completes "grew: …", "compressed: …",
            "trained afresh: …" or "trained further: …"; empty if the method gives none.
        measures: names and values of measures of the last backbone, if ``probe`` asks for any.
    """

    verdict: MethodVerdict
    saturation: float | None = None
    threshold: float | None = None
    merge_weight: float | None = None
    reason: Annotated[str, Field(max_length=500)] = ""
    measures: tuple[tuple[MeasureKey, float], ...] = ()
