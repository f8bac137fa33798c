"""The claims of a study, judged on its numbers and computed from the paper's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

from grace.settings.claims import ClaimSettings, Place, Side, Terms
from grace.studies.claims import Judgement, judge_claim
from grace.studies.grid_claims import grid_differences, grid_rows
from grace.studies.measure_claims import measure_differences
from grace.studies.sheet import Entry, Sheet
from grace.studies.study_cells import scale_name
from grace.studies.study_results import Results

_COUNTED = frozenset(
    {"never-rises", "fewer-points", "on-front", "backbones", "parameters", "exemplars", "megabytes"}
)
"""Kinds and metrics of numbers that are counted."""
Value = Callable[[str, str], float | None]
"""Gives a number by row and protocol."""


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
    def verdict(self) -> str:
        """The verdict of the judgement; "not measured" if a run is missing."""
        return self.judgement.verdict if self.judgement and self.is_complete else "not measured"


@final
@dataclass(frozen=True)
class JudgedClaim:
    """A claim with all its lines."""

    claim: ClaimSettings
    lines: tuple[ClaimLine, ...]

    @property
    def verdict(self) -> str:
        """The verdict on all lines: the worst, or with ``over: some`` the best of them."""
        order = ["fails", "not measured", "within noise", "holds"]
        places = [order.index(line.verdict) for line in self.lines]
        if not places:
            return "not measured"
        return order[max(places) if self.claim.over == "some" else min(places)]


def judge_claims(results: Results) -> list[JudgedClaim]:
    """Judge the claims of a study that can be made at its scale."""
    scale = scale_name(results.made.study, results.made.selection.scale)
    judged = [
        JudgedClaim(claim, tuple(_lines(claim, results)))
        for claim in results.made.study.claims
        if claim.scales is None or scale in claim.scales
    ]
    return [claim for claim in judged if claim.lines]


def claims_sheet(claims: list[JudgedClaim]) -> Sheet:
    """Return the claims with one line for each comparison."""
    headings = ("Claim", "Protocol", "Compared", "Paper", "Ours", "Runs", "Verdict")
    rows = []
    for judged in claims:
        whole = f"{judged.claim.id}: {judged.claim.says}" if judged.claim.says else judged.claim.id
        several = len(judged.lines) > 1
        if several:
            rows.append((whole, "", "", "", "", "", judged.verdict))
        for line in judged.lines:
            paper = "–" if line.paper is None else f"{line.paper:+.2f}"
            ours, runs = _ours(line.judgement)
            name = judged.claim.id if several else whole
            rows.append((name, line.protocol, line.compared, paper, ours, runs, line.verdict))
    notes = [
        "Ours and paper: left − right + slack. Ours is a mean over seeds ± its standard error; "
        "within noise: at most two standard errors from 0."
    ]
    if any(line.judgement and not line.is_complete for judged in claims for line in judged.lines):
        notes.append(
            "A number beside 'not measured' is that of the runs that are there: others are "
            "missing, or their rows were not chosen."
        )
    entries = tuple(tuple(Entry(text) for text in row) for row in rows)
    return Sheet(headings, entries, tuple(notes), num_names=3)


def _ours(judgement: Judgement | None) -> tuple[str, str]:
    if judgement is None:
        return "–", ""
    error = judgement.standard_error
    mean = f"{judgement.mean:+.2f}"
    return (mean if error is None else f"{mean} ± {error:.2f}"), str(judgement.count)


def _lines(claim: ClaimSettings, results: Results) -> Iterator[ClaimLine]:
    known = set(results.rows)
    if claim.kind == "difference":
        yield from _differences(claim, results, known)
        return
    for protocol in results.protocols:
        if claim.protocols is None or protocol in claim.protocols:
            yield _special(claim, protocol, results)


def _differences(claim: ClaimSettings, results: Results, known: set[str]) -> Iterator[ClaimLine]:
    """Yield a line for each pair of sides, metric and protocol."""
    for left, right in claim.sides:
        terms = [*left, *(right if isinstance(right, dict) else ())]
        if not {term.partition("@")[0] for term in terms} <= known:
            continue  # These rows were not chosen.
        named = {term.partition("@")[2] for term in terms} - {""}
        if not named <= set(results.protocols):
            continue
        across = len(named) > 0 and all("@" in term for term in terms)
        protocols = ("",) if across else results.protocols
        for protocol in protocols:
            if protocol and claim.protocols is not None and protocol not in claim.protocols:
                continue
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

    def of(value: Value) -> float | None:
        own = _sum(left, protocol, value)
        other = (
            _sum(right, protocol, value)
            if isinstance(right, dict)
            else _ranked(right, next(iter(left)), protocol, results, value)
        )
        return None if own is None or other is None else own - other

    found = [of(_of_seed(results, seed, key)) for seed in results.seeds]
    known = [value for value in found if value is not None]
    lacks = not isinstance(right, dict) and results.lacks_rivals(protocol)
    paper = None if lacks else of(lambda row, place: results.paper(row, place, key))
    words = f"{key}: {_words(left)} − {_words(right)}" + (f" + {slack:g}" if slack else "")
    return ClaimLine(
        claim,
        protocol,
        words.replace("+ -", "− "),
        _judged(known, slack, is_counted=key in _COUNTED),
        None if paper is None else paper + slack,
        len(known) == len(found)
        and not lacks
        and (isinstance(right, dict) or results.is_complete(results.ranked(protocol), protocol)),
    )


def _of_seed(results: Results, seed: int, key: str) -> Value:
    return lambda row, protocol: results.value(row, protocol, seed, key)


def _sum(terms: Terms, protocol: str, value: Value) -> float | None:
    total = 0.0
    for term, factor in terms.items():
        row, _, own = term.partition("@")
        found = value(row, own or protocol)
        if found is None:
            return None
        total += factor * found
    return total


def _ranked(place: Place, own: str, protocol: str, results: Results, value: Value) -> float | None:
    """Return the highest or second highest of the other ranked rows that are known."""
    others = [row for row in results.ranked(protocol) if row != own]
    known = sorted((v for r in others if (v := value(r, protocol)) is not None), reverse=True)
    index = 0 if place == "best" else 1
    return known[index] if len(known) > index else None


def _words(side: Side) -> str:
    if isinstance(side, str):
        return f"{side} other"
    parts = [term if factor == 1 else f"{factor:g} {term}" for term, factor in side.items()]
    return " + ".join(parts).replace("+ -", "− ") or "0"


def _special(claim: ClaimSettings, protocol: str, results: Results) -> ClaimLine:
    """Judge a claim about a grid or about saturation measures."""
    compare = grid_differences if claim.kind in _COUNTED else measure_differences
    differences, words = compare(claim, protocol, results)
    judged = _judged(differences, 0.0, is_counted=claim.kind in _COUNTED)
    rows = grid_rows(results, protocol) if claim.kind in _COUNTED else results.rows_in(protocol)
    is_whole = claim.kind != "on-front" or not results.lacks_points(protocol)
    is_complete = is_whole and results.is_complete(rows, protocol)
    return ClaimLine(claim, protocol, words, judged, is_complete=is_complete)


def _judged(differences: list[float], slack: float, *, is_counted: bool) -> Judgement | None:
    """Judge differences; of counts, what is true of every seed holds without noise.

    Args:
        differences: left − right for each seed.
        slack: added to each.
        is_counted: they are of numbers that are counted, not measured.
    """
    if not differences:
        return None
    judged = judge_claim(differences, slack)
    if is_counted and min(differences) + slack >= 0:
        return replace(judged, verdict="holds")
    return judged
