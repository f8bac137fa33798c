"""The gate: limits on what an update may cost, and the statistics of its verdicts. Torch-free.

The same held-out images are classified before and after an update, so that the two results of each
image form a pair. Three limits, which are settings of the learner:

- ``max_drop``: the old classes together. The observed drop decides; the paired test says if chance
  could explain it. Doubt counts against the update, which can still be put in use by hand.
- ``max_class_drop``: the worst old class. A class's observed drop must be beyond the limit, and the
  paired test must show a loss, corrected for the number of classes: among many classes one always
  looks bad by chance.
- ``min_new``: the new classes together. The observed accuracy decides.

The accuracies of an update are here too; every field is checked when a document is read, which may
come from a stranger.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grace.base.errors import GraceError
from grace.base.words import counted
from grace.settings.experiment import ExperimentSettings, GateSettings
from grace.settings.load import load_experiment

LEVEL = 0.05
"""Level of all tests: how often they may see a loss where there is none."""
_ROUNDING = 1e-9
"""Percentage points: from 80 % to 70 % is a drop of 10 points."""


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


def smallest_drop(num: int, num_tests: int = 1, level: float = LEVEL) -> float:
    """Return the smallest drop that ``sign_test`` can show on a number of images.

    With k images lost and none won the p-value is ``2^-k``: k must be at least
    ``log2(num_tests / level)``. Where images are won too, more must be lost.

    Args:
        num: number of images.
        num_tests: number of tests that share the level, as in ``holm``.
        level: of all tests together.

    Returns:
        The drop in percentage points; above 100 if even the loss of all images shows nothing.
    """
    return 100 * math.ceil(math.log2(num_tests / level) - 1e-9) / num


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


Share = Annotated[float, Field(ge=0, le=1)]
_Number = Annotated[int, Field(ge=0, le=10_000_000)]


class Strict(BaseModel):
    """A part of a document: frozen, with known fields and finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@final
class ClassAccuracy(Strict):
    """Numbers of a class's held-out images that were right before and after an update."""

    index: _Number
    """Class index."""
    num: Annotated[int, Field(ge=1, le=10_000_000)]
    """Number of held-out images."""
    before: _Number | None = None
    """Right before the update; ``None``: the class is new, or nothing could predict it."""
    after: _Number
    """Right after it."""
    lost: _Number = 0
    """Right before and wrong after it."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        before = self.before or 0
        won = self.after - before + self.lost
        if not (self.lost <= before <= self.num and 0 <= won <= self.num - before):
            raise GraceError("the counts of a class's held-out images contradict each other")
        return self

    @property
    def won(self) -> int:
        """Number of images that were wrong before and are right after."""
        return 0 if self.before is None else self.after - self.before + self.lost

    @property
    def drop(self) -> float | None:
        """Accuracy that the class lost, in percentage points; ``None`` for a new class."""
        return None if self.before is None else 100 * (self.before - self.after) / self.num

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 95 % interval of the accuracy after the update, as shares."""
        return wilson(self.after, self.num)

    @property
    def chance(self) -> float:
        """How likely chance alone loses so many images: the p-value of the paired test."""
        return sign_test(self.lost, self.won)


@final
class Accuracies(Strict):
    """The results of held-out images before and after an update; shares are in [0, 1].

    ``old`` are the classes that could be predicted before the update, ``new`` all others. A share
    is ``None`` where there are no such images.
    """

    teacher: Share | None = None
    """Accuracy of the expanded network on all held-out images, before compression."""
    student: Share | None = None
    """Accuracy of the compressed network on the same images."""
    classes: tuple[ClassAccuracy, ...] = ()
    """Each class with held-out images."""

    @property
    def old_classes(self) -> list[ClassAccuracy]:
        """The old classes, the largest drop first."""
        known = [own for own in self.classes if own.before is not None]
        return sorted(known, key=lambda own: (-(own.drop or 0.0), own.index))

    @property
    def new_classes(self) -> list[ClassAccuracy]:
        """The new classes, the lowest accuracy first."""
        added = [own for own in self.classes if own.before is None]
        return sorted(added, key=lambda own: (own.after / own.num, own.index))

    @property
    def num_old(self) -> int:
        """Number of held-out images of old classes."""
        return sum(own.num for own in self.old_classes)

    @property
    def num_new(self) -> int:
        """Number of held-out images of new classes."""
        return sum(own.num for own in self.new_classes)

    @property
    def old_before(self) -> float | None:
        """Accuracy on the old classes before the update."""
        right = sum(own.before or 0 for own in self.old_classes)
        return right / self.num_old if self.num_old else None

    @property
    def old_after(self) -> float | None:
        """Accuracy on the old classes after it."""
        right = sum(own.after for own in self.old_classes)
        return right / self.num_old if self.num_old else None

    @property
    def new_after(self) -> float | None:
        """Accuracy on the new classes after it."""
        right = sum(own.after for own in self.new_classes)
        return right / self.num_new if self.num_new else None

    @property
    def drop(self) -> float | None:
        """Accuracy that old classes lost, in percentage points."""
        if self.old_before is None or self.old_after is None:
            return None
        return 100 * (self.old_before - self.old_after)

    @property
    def compression_cost(self) -> float | None:
        """Accuracy that compression cost on all classes, in percentage points."""
        if self.teacher is None or self.student is None:
            return None
        return 100 * (self.teacher - self.student)


@final
@dataclass(frozen=True)
class Ruling:
    """The verdict by one limit.

    Args:
        name: of the limit.
        limit: in percentage points.
        is_passed: the update stays within the limit, as far as the images tell.
        observed: drop of the old classes or of the worst one, or accuracy of the new classes, in
            percentage points; ``None``: there are no images to judge by.
        num: number of images behind ``observed``.
        is_sure: the images show what the verdict says; otherwise chance could be the reason.
        doubtful: indices of the classes beyond the limit whose loss is not shown.
        p_value: of the paired test on the old classes or on the worst one, the latter not corrected
            for the number of classes; ``None``: nothing was tested.
    """

    name: Literal["max_drop", "max_class_drop", "min_new"]
    limit: float
    is_passed: bool = True
    observed: float | None = None
    num: int = 0
    is_sure: bool = False
    doubtful: tuple[int, ...] = ()
    p_value: float | None = None

    def words(self, class_names: Sequence[str]) -> str:
        """Say what was decided, and how sure that is; ``class_names`` are all, by index."""
        option = f"(gate.{self.name})"
        if self.observed is None:
            return f"cannot judge: no such images are held out {option}"
        verdict = "passed" if self.is_passed else "rejected"
        if self.name == "min_new":
            text = f"{self.observed:.1f} % of new classes right, {self.limit:g} needed"
        else:
            whose = "the old classes" if self.name == "max_drop" else "the worst class"
            change = "lost" if self.observed >= 0 else "gained"
            text = f"{whose} {change} {abs(self.observed):.1f} points, {self.limit:g} allowed"
        doubt = ", ".join(class_names[index] for index in self.doubtful[:4])
        doubts = [f"in doubt: {doubt}"] * bool(doubt)
        if not self.is_sure and not doubt:
            doubts = [f"{self.num} held-out images are too few to be sure"]
        return "; ".join([f"{verdict}: {text} {option}", *doubts])


def limits(settings: ExperimentSettings, max_drop: float | None) -> GateSettings:
    """Return what an update may cost: the limits of a learner, one of which a call may replace.

    Raises:
        ConfigError: for a limit outside 0 to 100.
    """
    given = [] if max_drop is None else [f"gate.max_drop={max_drop}"]
    return load_experiment(settings, given).gate


def judge(accuracy: Accuracies, gate: GateSettings) -> list[Ruling]:
    """Judge an update by each limit that is given; see this module for the rules."""
    rulings = []
    if gate.max_drop is not None:
        rulings.append(_by_old(accuracy, gate.max_drop))
    if gate.max_class_drop is not None:
        rulings.append(_by_worst(accuracy, gate.max_class_drop))
    if gate.min_new is not None:
        rulings.append(_by_new(accuracy, gate.min_new))
    return rulings


def accepts(accuracy: Accuracies, gate: GateSettings) -> bool:
    """Return ``True`` if an update stays within all its limits."""
    return all(ruling.is_passed for ruling in judge(accuracy, gate))


def lost_classes(accuracy: Accuracies) -> list[ClassAccuracy]:
    """Return the old classes that lost accuracy by the paired test, the largest drop first.

    All tests together name a class that lost nothing in at most 5 % of updates (Holm).
    """
    old = accuracy.old_classes
    shown = holm([own.chance for own in old])
    return [own for own, is_shown in zip(old, shown, strict=True) if is_shown]


def too_fine(gate: GateSettings, counts: Sequence[int]) -> Iterator[str]:
    """Say which limits are smaller than the drops that held-out images can show.

    Args:
        gate: what an update may cost.
        counts: number of held-out images of each old class that has any.
    """
    if not counts:
        return
    each = {"max_drop": (sum(counts), 1), "max_class_drop": (min(counts), len(counts))}
    for name, (num, num_tests) in each.items():
        limit, smallest = getattr(gate, name), smallest_drop(num, num_tests)
        if limit is not None and limit < smallest - _ROUNDING:
            images, enough = counted(num, "held-out image"), math.ceil(10 * smallest - 1e-9) / 10
            least = f" below {enough:g} points; set no less" if smallest <= 100 else ""
            yield f"gate.{name}={limit:g} is too fine: {images} can show no drop{least}"


def _by_old(accuracy: Accuracies, limit: float) -> Ruling:
    drop, num, old = accuracy.drop, accuracy.num_old, accuracy.old_classes
    if drop is None:
        return Ruling("max_drop", limit)
    chance = sign_test(sum(own.lost for own in old), sum(own.won for own in old))
    is_passed = drop <= limit + _ROUNDING
    is_sure = smallest_drop(num) <= limit + _ROUNDING if is_passed else chance <= LEVEL
    return Ruling("max_drop", limit, is_passed, drop, num, is_sure, p_value=chance)


def _by_worst(accuracy: Accuracies, limit: float) -> Ruling:
    old = accuracy.old_classes
    if not old:
        return Ruling("max_class_drop", limit)
    beyond = [own for own in old if (own.drop or 0.0) > limit + _ROUNDING]
    shown = [own for own in lost_classes(accuracy) if own in beyond]
    fewest, worst = min(own.num for own in old), (shown or old)[0]
    can_tell = smallest_drop(fewest, len(old)) <= limit + _ROUNDING
    is_sure = bool(shown) or (not beyond and can_tell)
    doubtful = tuple(own.index for own in beyond if own not in shown)
    return Ruling(
        "max_class_drop", limit, not shown, worst.drop, fewest, is_sure, doubtful, worst.chance
    )


def _by_new(accuracy: Accuracies, limit: float) -> Ruling:
    num = accuracy.num_new
    if not num:
        return Ruling("min_new", limit)
    right = sum(own.after for own in accuracy.new_classes)
    low, high = wilson(right, num)
    is_passed = 100 * right / num >= limit - _ROUNDING
    is_sure = 100 * low >= limit if is_passed else 100 * high < limit
    return Ruling("min_new", limit, is_passed, 100 * right / num, num, is_sure)
