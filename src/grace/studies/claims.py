"""Judge a claim of the paper on our own numbers. Imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, final

ClaimVerdict = Literal["holds", "fails", "within noise"]


@final
@dataclass(frozen=True)
class Judgement:
    """The verdict on one claim.

    Args:
        mean: d, the mean over the seeds of left − right + slack.
        standard_error: sd/√n of that difference; ``None`` for a single seed.
        count: n, the number of seeds.
        verdict: "within noise" if n > 1 and |d| is at most two standard errors; else "holds" for
            d ≥ 0 and "fails" for d < 0.
    """

    mean: float
    standard_error: float | None
    count: int
    verdict: ClaimVerdict


def judge_claim(differences: Sequence[float], slack: float = 0.0) -> Judgement:
    """Judge the claim that left + slack is at least right.

    Args:
        differences: left − right for each seed, unrounded; at least one.
        slack: added to every difference. Higher: right may be better by more.
    """
    assert differences
    values = [difference + slack for difference in differences]
    mean, count = fmean(values), len(values)
    error = stdev(values) / math.sqrt(count) if count > 1 else None
    if error is not None and abs(mean) <= 2 * error:
        return Judgement(mean, error, count, "within noise")
    return Judgement(mean, error, count, "holds" if mean >= 0 else "fails")
