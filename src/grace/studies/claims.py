"""The claims of a study, judged seed by seed on its numbers, and computed from the paper's."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal, final

from grace.base.words import counted
from grace.runs.model import RunRecord
from grace.studies.measures import trends_of
from grace.studies.pareto import Point, by_seed, front_places, merged
from grace.studies.results import Results
from grace.studies.schema import ClaimSettings, Side, Terms

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "fails", "within noise", "not measured"]
_GRID = frozenset({"never-rises", "fewer-points", "on-front"})
_COUNTED = _GRID | {"backbones", "parameters", "exemplars", "megabytes"}
"""Kinds and metrics of numbers that are counted: what is true of every seed holds without noise."""


@final
@dataclass(frozen=True)
class Judgement:
    """The verdict on differences of some seeds.

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
    verdict: Verdict


@final
@dataclass(frozen=True)
class ClaimLine:
    """One comparison of a claim.

    Args:
        claim: the claim.
        protocol: where it was made; empty: it compares protocols.
        compared: what was compared, in words.
        judgement: of our numbers; ``None``: there are none.
        paper: left − right + slack of the paper's numbers; ``None``: it has none.
        is_complete: ``False``: a run of a selected seed is missing, and a verdict cannot be given.
    """

    claim: ClaimSettings
    protocol: str
    compared: str
    judgement: Judgement | None
    paper: float | None = None
    is_complete: bool = True

    @property
    def verdict(self) -> Verdict:
        """The verdict of the judgement; "not measured" if a run is missing."""
        return self.judgement.verdict if self.judgement and self.is_complete else "not measured"


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
        places = [order.index(line.verdict) for line in self.lines]
        return order[max(places) if self.claim.over == "some" else min(places)]


def judge(
    differences: Sequence[float], slack: float = 0.0, *, is_counted: bool = False
) -> Judgement:
    """Judge the claim that left + slack is at least right.

    Args:
        differences: left − right for each seed, unrounded; at least one.
        slack: added to every difference. Higher: right may be better by more.
        is_counted: of counts, what is true of every seed holds without noise.
    """
    values = [difference + slack for difference in differences]
    mean, count = fmean(values), len(values)
    error = stdev(values) / math.sqrt(count) if count > 1 else None
    is_noise = error is not None and abs(mean) <= 2 * error
    verdict: Verdict = "within noise" if is_noise else "holds" if mean >= 0 else "fails"
    return Judgement(mean, error, count, "holds" if is_counted and min(values) >= 0 else verdict)


def judge_claims(results: Results) -> list[JudgedClaim]:
    """Judge the claims of a study that can be made at its scale."""
    judged = [
        JudgedClaim(claim, tuple(_lines(claim, results)))
        for claim in results.made.study.claims
        if claim.scales is None or results.at in claim.scales
    ]
    return [claim for claim in judged if claim.lines]


def _lines(claim: ClaimSettings, results: Results) -> Iterator[ClaimLine]:
    protocols = [p for p in results.protocols if claim.protocols is None or p in claim.protocols]
    if claim.kind != "difference":
        yield from (_special(claim, protocol, results) for protocol in protocols)
        return
    for left, right in claim.sides:
        terms = [term.partition("@") for term in _terms(left, right)]
        named = {protocol for _, _, protocol in terms} - {""}
        if not {row for row, _, _ in terms} <= set(results.rows):
            continue  # These rows were not chosen.
        if not named <= set(results.protocols):
            continue
        across = bool(named) and all(protocol for _, _, protocol in terms)
        for protocol in ("",) if across else protocols:
            for key, slack in claim.slacks.items():
                yield _difference(claim, results, left, right, protocol, key, slack)


def _difference(
    claim: ClaimSettings,
    results: Results,
    left: Terms,
    right: Side,
    protocol: str,
    key: str,
    slack: float,
) -> ClaimLine:
    """Judge left − right + slack of one metric, seed by seed."""
    own = next(iter(left))

    def differences(numbers: "pd.DataFrame") -> list[float]:
        values = numbers[key].unstack("seed")
        if isinstance(right, dict):
            other = _sum(right, protocol, values)
        else:
            others = [row for row in results.ranked(protocol) if row != own]
            ranked = values.loc[[(protocol, row) for row in others]]
            place = 0 if right == "best" else 1
            tops = {s: sorted(ranked[s].dropna(), reverse=True) for s in ranked}
            found = {s: top[place] for s, top in tops.items() if len(top) > place}
            other = values.iloc[0].map(lambda _: math.nan)
            other.update(found)
        return [float(value) for value in (_sum(left, protocol, values) - other).dropna()]

    is_ranked = not isinstance(right, dict)
    lacks = is_ranked and results.lacks_rivals(protocol)
    known, paper = differences(results.numbers), [] if lacks else differences(results.paper)
    words = f"{key}: {_words(left)} − {_words(right)}" + (f" + {slack:g}" if slack else "")
    is_whole = len(known) == len(results.seeds) and not lacks
    return ClaimLine(
        claim,
        protocol,
        words.replace("+ -", "− "),
        judge(known, slack, is_counted=key in _COUNTED) if known else None,
        paper[0] + slack if paper else None,
        is_whole and (not is_ranked or results.is_complete(results.ranked(protocol), protocol)),
    )


def _sum(terms: Terms, protocol: str, values: "pd.DataFrame") -> "pd.Series[float]":
    """Return the sum of a side by seed; NaN where a run is missing."""
    total = values.iloc[0] * 0.0
    total[:] = 0.0
    for term, factor in terms.items():
        row, _, own = term.partition("@")
        place = (own or protocol, row)
        total = total + factor * (values.loc[place] if place in values.index else math.nan)
    return total


def _terms(left: Terms, right: Side) -> list[str]:
    return [*left, *(right if isinstance(right, dict) else ())]


def _words(side: Side) -> str:
    if isinstance(side, str):
        return f"{side} other"
    parts = [term if factor == 1 else f"{factor:g} {term}" for term, factor in side.items()]
    return " + ".join(parts).replace("+ -", "− ") or "0"


def _special(claim: ClaimSettings, protocol: str, results: Results) -> ClaimLine:
    """Judge a claim about a grid or about saturation measures."""
    is_grid = claim.kind in _GRID
    find = {
        "never-rises": _falls,
        "fewer-points": _repeats,
        "on-front": _on_front,
    }.get(claim.kind, _measured)
    known, words = find(claim, protocol, results)
    rows = results.grid_rows(protocol) if is_grid else results.rows_in(protocol)
    is_whole = claim.kind != "on-front" or not results.lacks_points(protocol)
    return ClaimLine(
        claim,
        protocol,
        words,
        judge(known, is_counted=is_grid) if known else None,
        is_complete=is_whole and results.is_complete(rows, protocol),
    )


Compared = tuple[list[float], str]
"""Differences that are not negative where a claim holds, and what was compared, in words."""


def _repeats(claim: ClaimSettings, protocol: str, results: Results) -> Compared:
    """Return for each seed how many pairs, less one, lie where another one lies."""
    measured, found = by_seed(results, protocol, "average"), list[float]()
    for seed in results.seeds:
        points = [Point(*runs[seed], (row,)) for row, runs in measured.items() if seed in runs]
        if points:
            found.append(len(points) - len(merged(points)) - 1.0)
    return found, "pairs − distinct points − 1"


def _falls(claim: ClaimSettings, protocol: str, results: Results) -> Compared:
    """Return for each seed the least fall of backbones between neighbours of a grid's setting."""
    backbones, found = results.numbers["backbones"], list[float]()
    lines = [
        pair for line in _grid_lines(claim.setting, protocol, results) for pair in pairwise(line)
    ]
    for seed in results.seeds:
        falls = [backbones[protocol, a, seed] - backbones[protocol, b, seed] for a, b in lines]
        known = [float(fall) for fall in falls if not math.isnan(fall)]
        found += [min(known)] if known else []
    return found, f"least fall of backbones with {claim.setting}"


def _grid_lines(setting: str, protocol: str, results: Results) -> Iterator[list[str]]:
    """Yield rows of grids that differ in one setting only, by its rising value."""
    standing = set(results.rows_in(protocol))
    for name, row in results.made.study.rows.items():
        if row.grid is None or setting not in row.grid:
            continue
        place = list(row.grid).index(setting)
        lines: dict[tuple[str, ...], dict[float, str]] = {}
        for label in filter(standing.__contains__, results.made.study.grid_rows(name)):
            parts = label.split("/")
            line = lines.setdefault((*parts[:place], *parts[place + 1 :]), {})
            line[float(parts[place])] = label
        for line in lines.values():
            yield [line[value] for value in sorted(line)]


def _on_front(claim: ClaimSettings, protocol: str, results: Results) -> Compared:
    label = str(claim.left)
    place = front_places(by_seed(results, protocol, "average")).get(label)
    words = f"{label} on the front of the means"
    if place is None:
        return [], words
    words += f"; on that of {place.times} of {counted(place.seeds, 'seed')}"
    if place.dominated_by is not None:
        words += f"; dominated beyond noise by {counted(place.dominated_by, 'pair')}"
    return [0.0 if place.is_on_front else -1.0], words


def _measured(claim: ClaimSettings, protocol: str, results: Results) -> Compared:
    """Compare one measure of saturation with the others, in every run that has it."""
    name = str(claim.left)
    found = [
        difference
        for row in results.rows
        for one in results.found(row, protocol)
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
    own = known.get(name)
    if own is None:
        return None
    others = [found for other, found in known.items() if other != name]
    if kind == "resets":
        return min(own.falls, default=None)
    if kind == "rises-most":
        rises = [found.rise for found in others if found.rise is not None]
        return None if own.rise is None or not rises else own.rise - max(rises)
    spreads = [
        found.agreement
        for found in others
        if found.agreement is not None and found.rise is not None and found.rise > 0.5
    ]
    return None if own.agreement is None or not spreads else min(spreads) - own.agreement
