"""The limit below which an image counts as unknown, at a rate of false alarms. Torch-free."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grace.base.errors import GraceError

if TYPE_CHECKING:
    from torch import Tensor


def cutoff(held_out: "Sequence[float] | Tensor", false_alarms: float) -> float:
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
        raise GraceError(f"{100 * false_alarms:g} % false alarms must lie between 0 and 100 %")
    # 1e-9 against rounding, so that 0.05 · 20 is 1 and a third of 3 too.
    rank = int(false_alarms * (len(held_out) + 1) + 1e-9)
    if rank == 0:
        enough = math.ceil((1 - 1e-9) / max(false_alarms, 1e-12)) - 1
        raise GraceError(
            f"{100 * false_alarms:g} % false alarms need at least {enough} held-out images, "
            f"this learner has {len(held_out)}",
            "allow more false alarms or hold out more images",
        )
    return float(np.sort(np.asarray(held_out, np.float32))[rank - 1])
