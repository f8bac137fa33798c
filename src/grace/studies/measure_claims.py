"""Saturation measures of a study's runs over tasks, and claims about them."""

from collections.abc import Mapping

from grace.runs import RunRecord
from grace.settings.claims import ClaimSettings
from grace.studies.replay import expansions
from grace.studies.study_results import Results
from grace.studies.trends import Trend, trend


def measures_of(record: RunRecord) -> Mapping[str, list[float]]:
    """Return the measures that every task of a run has, by name, in the order of tasks.

    The standard error of a measure, which ends in "_error", is none.
    """
    taken = [task.measures for task in record.tasks]
    first = [name for name in taken[0] if not name.endswith("_error")] if taken else []
    names = [name for name in first if all(name in found for found in taken)]
    return {name: [found[name] for found in taken] for name in names}


def trends_of(record: RunRecord) -> Mapping[str, Trend]:
    """Return rise, reset and agreement of every measure of a run."""
    at = expansions(record)
    return {name: trend(values, at) for name, values in measures_of(record).items()}


def measure_differences(
    claim: ClaimSettings, protocol: str, results: Results
) -> tuple[list[float], str]:
    """Compare one measure with the others, seed by seed.

    Args:
        claim: of kind "rises-most", "resets" or "agrees-best"; its left side names the measure.
        protocol: name of the protocol.
        results: the study's numbers.

    Returns:
        A difference for each run that has the measure, not negative where the claim holds; and what
        was compared, in words.
    """
    name, found = str(claim.left), []
    for row in results.rows:
        for seed in results.seeds:
            one = results.found(row, protocol, seed)
            difference = _difference(claim.kind, name, one.record) if one else None
            if difference is not None:
                found.append(difference)
    words = {
        "rises-most": f"rise of {name} − the highest rise of the others",
        "resets": f"least fall of {name} at an expansion",
        "agrees-best": f"agreement of {name} against the best other that rises above 0.5",
    }
    return found, words[claim.kind]


def _difference(kind: str, name: str, record: RunRecord) -> float | None:
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
