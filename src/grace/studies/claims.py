"""The claims of a study, judged seed by seed on its numbers, and computed from the paper's."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal, final

from grace.base.words import counted
from grace.runs.model import RunRecord
from grace.studies.measures import trends_of
from grace.studies.pareto import front_places, grid_numbers, points
from grace.studies.results import StudyResult
from grace.studies.schema import ClaimSettings, Place, Terms, terms_of

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "fails", "within noise", "not measured"]
_COUNTED = {"backbones", "parameters", "exemplars", "megabytes"}
"""Metrics of numbers that are counted: what is true of every seed holds without noise."""


@final
@dataclass(frozen=True)
class Judgement:
    """The verdict on differences of some seeds.

    Args:
        mean: d, the mean over the seeds of left − right + slack; ``None`` without a seed.
        standard_error: sd/√n of that difference; ``None`` for a single seed.
        count: n, the number of seeds.
        verdict: "within noise" if n > 1 and |d| is at most two standard errors; else "holds" for
            d ≥ 0 and "fails" for d < 0; "not measured" if a run of a selected seed is missing.
    """

    mean: float | None
    standard_error: float | None
    count: int
    verdict: Verdict


@final
@dataclass(frozen=True)
class ClaimLine:
    """One comparison of a claim.

    Args:
        protocol: where it was made; empty: it compares protocols.
        compared: what was compared, in words.
        judgement: of our numbers.
        paper: left − right + slack of the paper's numbers; ``None``: it has none.
    """

    protocol: str
    compared: str
    judgement: Judgement
    paper: float | None = None


@final
@dataclass(frozen=True)
class JudgedClaim:
    """A claim with all its lines."""

    claim: ClaimSettings
    lines: tuple[ClaimLine, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict on all lines: the worst, or with ``over: some`` the best of them."""
        order: list[Verdict] = ["fails", "not measured", "within noise", "holds"]
        choose = max if self.claim.over == "some" else min
        return choose((line.judgement.verdict for line in self.lines), key=order.index)


def judge(
    differences: Sequence[float],
    slack: float = 0.0,
    *,
    is_counted: bool = False,
    is_complete: bool = True,
) -> Judgement:
    """Judge the claim that left + slack is at least right.

    Args:
        differences: left − right for each seed, unrounded.
        slack: added to every difference. Higher: right may be better by more.
        is_counted: of counts, what is true of every seed holds without noise.
        is_complete: all runs that it is about are there.
    """
    if not differences:
        return Judgement(None, None, 0, "not measured")
    values = [difference + slack for difference in differences]
    mean, count = fmean(values), len(values)
    error = stdev(values) / math.sqrt(count) if count > 1 else None
    is_noise = error is not None and abs(mean) <= 2 * error
    verdict: Verdict = "within noise" if is_noise else "holds" if mean >= 0 else "fails"
    if is_counted and min(values) >= 0:
        verdict = "holds"
    return Judgement(mean, error, count, verdict if is_complete else "not measured")


def judge_claims(result: StudyResult) -> list[JudgedClaim]:
    """Judge the claims of a study that can be made at its scale."""
    judged = [
        JudgedClaim(claim, tuple(_lines(claim, result)))
        for claim in result.study.claims
        if claim.scales is None or result.at in claim.scales
    ]
    return [claim for claim in judged if claim.lines]


def _lines(claim: ClaimSettings, result: StudyResult) -> Iterator[ClaimLine]:
    protocols = [p for p in result.protocols if claim.protocols is None or p in claim.protocols]
    if claim.kind != "difference":
        yield from (_special(claim, protocol, result) for protocol in protocols)
        return
    for left, right in claim.sides:
        terms = terms_of(left, right)
        rows, named = ({term[place] for term in terms} for place in (0, 1))
        # Rows or protocols that were not chosen are compared with nothing.
        if rows <= {*result.rows} and named <= {"", *result.protocols}:
            across = "" not in named
            for protocol in [""] if across else protocols:
                for key, slack in claim.slacks.items():
                    yield _difference(result, left, right, protocol, key, slack)


def _difference(
    result: StudyResult, left: Terms, right: Place | Terms, protocol: str, key: str, slack: float
) -> ClaimLine:
    """Judge left − right + slack of one metric, seed by seed."""
    is_ranked, rivals = not isinstance(right, dict), result.ranked(protocol)
    others = [(protocol, row) for row in rivals if row not in left]

    def differences(numbers: "pd.DataFrame") -> list[float]:
        values = numbers[key].unstack("seed")
        if isinstance(right, dict):
            other = _sum(right, protocol, values)
        else:
            place = 0 if right == "best" else 1
            ranked = (values.loc[others, s].dropna().nlargest(place + 1) for s in values)
            other = [tops.iloc[place] if len(tops) > place else math.nan for tops in ranked]
        return [float(value) for value in (_sum(left, protocol, values) - other).dropna()]

    lacks = is_ranked and result.lacks(protocol)
    known, paper = differences(result.numbers), [] if lacks else differences(result.paper)
    words = f"{key}: {_words(left)} − {_words(right)}" + (f" + {slack:g}" if slack else "")
    is_whole = len(known) == len(result.seeds) and not lacks
    is_whole = is_whole and (not is_ranked or result.is_complete(rivals, protocol))
    return ClaimLine(
        protocol,
        words.replace("+ -", "− "),
        judge(known, slack, is_counted=key in _COUNTED, is_complete=is_whole),
        paper[0] + slack if paper else None,
    )


def _sum(terms: Terms, protocol: str, values: "pd.DataFrame") -> "pd.Series[float]":
    """Return the sum of a side by seed; NaN where a run is missing."""
    parts = [(term.partition("@"), factor) for term, factor in terms.items()]
    rows = values.reindex([(own or protocol, row) for (row, _, own), _ in parts])
    return rows.mul([factor for _, factor in parts], axis=0).sum(skipna=False)


def _words(side: Place | Terms) -> str:
    if isinstance(side, str):
        return f"{side} other"
    parts = [term if factor == 1 else f"{factor:g} {term}" for term, factor in side.items()]
    return " + ".join(parts).replace("+ -", "− ") or "0"


def _special(claim: ClaimSettings, protocol: str, result: StudyResult) -> ClaimLine:
    """Judge a claim about a grid or about saturation measures."""
    grid_kinds = {"never-rises": _falls, "fewer-points": _repeats, "on-front": _on_front}
    is_grid = claim.kind in grid_kinds
    known, words = grid_kinds.get(claim.kind, _measured)(claim, protocol, result)
    rows = result.grid_rows(protocol) if is_grid else result.rows_in(protocol)
    lacks = claim.kind == "on-front" and result.lacks(protocol, grids=True)
    is_whole = result.is_complete(rows, protocol) and not lacks
    return ClaimLine(protocol, words, judge(known, is_counted=is_grid, is_complete=is_whole))


Compared = tuple[list[float], str]
"""Differences that are not negative where a claim holds, and what was compared, in words."""


def _repeats(claim: ClaimSettings, protocol: str, result: StudyResult) -> Compared:
    """Return for each seed how many pairs, less one, lie where another one lies."""
    x, y = grid_numbers(result, protocol, "average")
    found = [int(x[s].count()) - len(points(x[s], y[s])) - 1.0 for s in x if x[s].any()]
    return found, "pairs − distinct points − 1"


def _falls(claim: ClaimSettings, protocol: str, result: StudyResult) -> Compared:
    """Return for each seed the least fall of backbones between neighbours of a grid's setting."""
    backbones = result.numbers["backbones"].loc[protocol].unstack("seed")
    lines = _grid_lines(claim.setting, protocol, result)
    falls = [backbones.loc[a] - backbones.loc[b] for line in lines for a, b in pairwise(line)]
    least = [min(known) for s in backbones if (known := [f[s] for f in falls if f[s] == f[s]])]
    return [float(fall) for fall in least], f"least fall of backbones with {claim.setting}"


def _grid_lines(setting: str, protocol: str, result: StudyResult) -> Iterator[list[str]]:
    """Yield rows of grids that differ in one setting only, by its rising value."""
    import pandas as pd

    for name, row in result.study.rows.items():
        if row.grid is not None and setting in row.grid:
            points = pd.DataFrame(product(*row.grid.values()), columns=list(row.grid))
            points.index = pd.Index(result.study.grid_rows(name))
            standing = points.loc[points.index.isin(result.rows_in(protocol))]
            others = [key for key in row.grid if key != setting]
            lines = standing.groupby(others) if others else [("", standing)]
            yield from (list(line.sort_values(setting).index) for _, line in lines)


def _on_front(claim: ClaimSettings, protocol: str, result: StudyResult) -> Compared:
    places = front_places(*grid_numbers(result, protocol, "average"))
    words = f"{claim.subject} on the front of the means"
    if claim.subject not in places.index:
        return [], words
    place = places.loc[claim.subject]
    words += f"; on that of {place.times} of {counted(place.seeds, 'seed')}"
    if place.seeds > 1:
        words += f"; dominated beyond noise by {counted(int(place.dominated_by), 'pair')}"
    return [0.0 if place.is_on_front else -1.0], words


def _measured(claim: ClaimSettings, protocol: str, result: StudyResult) -> Compared:
    """Compare one measure of saturation with the others, in every run that has it."""
    name = claim.subject
    found = [
        difference
        for row in result.rows
        for one in result.runs(row, protocol)
        if (difference := _of_measure(claim.kind, name, one.record)) is not None
    ]
    words = {
        "rises-most": f"rise of {name} − the highest rise of the others",
        "resets": f"least fall of {name} at an expansion",
        "agrees-best": f"agreement of {name} against the best other that rises above 0.5",
    }
    return found, words[claim.kind]


def _of_measure(kind: str, name: str, record: RunRecord) -> float | None:
    known = trends_of(record)
    own = known.pop(name, None)
    if own is None:
        return None
    if kind == "resets":
        return min(own.falls, default=None)
    if kind == "rises-most":
        rises = [other.rise for other in known.values() if other.rise is not None]
        return None if own.rise is None or not rises else own.rise - max(rises)
    rising = [other for other in known.values() if (other.rise or 0) > 0.5]
    spreads = [other.agreement for other in rising if other.agreement is not None]
    return None if own.agreement is None or not spreads else min(spreads) - own.agreement
