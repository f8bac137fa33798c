"""Recognise images that are unlike anything learnt, at a stated rate of false alarms.

Shapes: N images, K classes.
"""

import math

from torch import Tensor

from grace.text.refusals import GraceError


def familiarity(scores: Tensor) -> Tensor:
    """Compute how much images look like something learnt: ``log Σ_k exp s_k``, (N, K) → (N,).

    The negative energy of Liu et al., "Energy-based Out-of-distribution Detection" (NeurIPS 2020),
    at temperature 1; masked classes add nothing.
    """
    return scores.float().logsumexp(dim=1)


def cutoff(held_out: Tensor, false_alarms: float) -> float:
    """Return the familiarity below which an image counts as unknown.

    The k-th smallest of n held-out scores with ``k = floor(a·(n + 1))``: a fresh image of a learnt
    class, drawn like the held-out ones, falls below it with probability at most ``k/(n + 1) ≤ a``
    (split conformal prediction).

    Args:
        held_out: (n,) familiarities of held-out images of learnt classes.
        false_alarms: share a of images of learnt classes that may be called unknown, in (0, 1);
            a larger share recognises more unknown images.

    Raises:
        GraceError: if there are too few held-out images for so small a share.
    """
    if not 0 < false_alarms < 1:
        raise GraceError(f"false alarm rate {false_alarms} must lie between 0 and 1")
    # 1e-9 against rounding, so that 0.05 · 20 is 1 and a third of 3 too.
    rank = int(false_alarms * (len(held_out) + 1) + 1e-9)
    if rank == 0:
        enough = math.ceil((1 - 1e-9) / max(false_alarms, 1e-12)) - 1
        raise GraceError(
            f"a false-alarm rate of {false_alarms:g} needs at least {enough} held-out images, "
            f"this learner has {len(held_out)}",
            "allow more false alarms or hold out more images",
        )
    return float(held_out.sort().values[rank - 1])
