"""Statistics of accuracies: intervals, paired tests, calibration. Pure functions, torch-free."""

import math
from collections.abc import Sequence

LEVEL = 0.05
"""Level of all tests: how often they may see a loss where there is none."""


def wilson(num_right: int, num: int, z: float = 1.959964) -> tuple[float, float]:
    """Compute Wilson's interval for a share of images.

    ``(p + z²/2n ± z·sqrt(p(1 − p)/n + z²/4n²)) / (1 + z²/n)`` with p = right/n.

    Args:
        num_right: images that were classified correctly, at most ``num``.
        num: n, number of images, at least 1.
        z: quantile of the normal distribution: 1.96 for 95 %. Higher: a wider interval.

    Returns:
        The interval's ends, in [0, 1].

    Reference:
        Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
    """
    assert 0 <= num_right <= num
    assert num > 0
    share, square = num_right / num, z * z / num
    middle = share + square / 2
    spread = z * math.sqrt(share * (1 - share) / num + square / (4 * num))
    ends = ((middle - spread) / (1 + square), (middle + spread) / (1 + square))
    return max(0.0, ends[0]), min(1.0, ends[1])


def sign_test(num_lost: int, num_won: int) -> float:
    """Compute how likely chance alone loses so many images (McNemar's exact test, one side).

    ``P(X ≥ lost)`` for X of a binomial distribution with n = lost + won and probability 1/2: if
    nothing changed, an image whose result differs is as often lost as won.

    Returns:
        The p-value in (0, 1]; 1 if nothing is lost.
    """
    num = num_lost + num_won
    if num_lost == 0:
        return 1.0
    if num > 1000:
        # The sum of so many integers is slow. scipy is imported where it is needed: it is slow too.
        from scipy.special import bdtrc

        return float(bdtrc(num_lost - 1, num, 0.5))
    num_cases = sum(math.comb(num, k) for k in range(num_lost, num + 1))
    return float(num_cases / 2**num)


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Return which of several tests show something; all together err at most at ``level``.

    The i-th smallest of m p-values is compared with ``level / (m − i)``, i from 0; from the first
    that is larger on, no test shows anything.

    Args:
        p_values: of the tests.
        level: share of draws in which any test may err.

    Reference:
        Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Stat. 1979.
    """
    shown = [False] * len(p_values)
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] > level / (len(p_values) - step):
            break
        shown[place] = True
    return shown


def smallest_drop(num: int, num_tests: int = 1, level: float = LEVEL) -> float | None:
    """Return the smallest drop that ``sign_test`` can show on a number of images.

    With k images lost and none won the p-value is ``2^-k``: k must be at least
    ``log2(num_tests / level)``. Where images are won too, more must be lost.

    Args:
        num: number of images.
        num_tests: number of tests that share the level, as in ``holm``.
        level: of all tests together.

    Returns:
        The drop in percentage points; ``None`` if even the loss of all images shows nothing.
    """
    needed = math.ceil(math.log2(num_tests / level) - 1e-9)
    return 100 * needed / num if needed <= num else None


def calibration_error(
    confidences: Sequence[float], are_right: Sequence[bool], num_bins: int = 15
) -> float:
    """Compute the expected calibration error: how far confidence and accuracy are apart.

    ``Σ_b n_b/n · |accuracy_b − confidence_b|`` over bins of equal width; a confidence on the edge
    of two bins belongs to the lower one.

    Args:
        confidences: probability of each image's predicted class, in [0, 1].
        are_right: ``True`` for each image whose prediction is correct.
        num_bins: number of bins. More: finer, and higher by chance on few images.

    Returns:
        The error in [0, 1]; 0 without images.

    Reference:
        Guo et al., "On calibration of modern neural networks", ICML 2017, equation 3.
    """
    sums = [[0.0, 0.0] for _ in range(num_bins)]
    for confidence, is_right in zip(confidences, are_right, strict=True):
        place = min(num_bins - 1, max(0, math.ceil(confidence * num_bins) - 1))
        sums[place][0] += confidence
        sums[place][1] += is_right
    return sum(abs(right - sure) for sure, right in sums) / max(1, len(confidences))
