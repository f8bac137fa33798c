"""Tables of texts: what a study, a comparison and a report show, and their forms.

A table shows rounded numbers. Programs read ``table.csv`` and ``claims.csv``, which do not round.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from grace.base.words import latex, printable, spreadsheet
from grace.studies.claims import JudgedClaim
from grace.studies.frame import METRICS, Metric
from grace.studies.measures import Trend, trends_of
from grace.studies.paper import row_in_paper
from grace.studies.pareto import front_places, grid_numbers
from grace.studies.results import REPLAYED, StudyResult

Mark = Literal["best", "second"]
_RANKED = frozenset({"last", "average", "forgetting"})
"""The metrics whose best values are marked."""


@final
@dataclass(frozen=True)
class Table:
    """A table of texts.

    Args:
        name: its heading.
        headings: one for each column.
        rows: as many texts in each.
        notes: lines below the table.
        num_names: columns of names, which come first and stand at the left.
        marks: the best and second best cells by row and column.
    """

    name: str
    headings: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    num_names: int = 1
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)

    def to_latex(self) -> str:
        r"""Return the table as a LaTeX ``tabular`` with booktabs rules; all texts are escaped."""
        import pandas as pd

        forms = {None: "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
        lines = [
            [forms[self.marks.get((r, c))].format(latex(text)) for c, text in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]
        comments = (f"% {printable(' '.join(text.split()))}\n" for text in (self.name, *self.notes))
        columns = "l" * self.num_names + "r" * (len(self.headings) - self.num_names)
        table = pd.DataFrame(lines, columns=[latex(text) for text in self.headings])
        body = table.to_latex(index=False, column_format=columns)
        return "".join([*comments, "% needs \\usepackage{booktabs}\n", body])


def study_tables(result: StudyResult) -> list[Table]:
    """Return the tables of a study: results by protocol, then fronts, then measures."""
    figures = result.study.figures
    return [
        *(_protocol_table(result, protocol) for protocol in result.protocols),
        *(t for p in result.protocols if "front" in figures for t in _front_table(result, p)),
        *(t for p in result.protocols if "measures" in figures for t in _measures(result, p)),
    ]


def numbers_csv(result: StudyResult) -> str:
    """Return all numbers of a study, a line for each row, protocol and metric, not rounded."""
    return _csv(
        {
            "protocol": protocol,
            "experiment": result.scale.protocols[protocol].experiment,
            "row": row,
            "metric": key,
            "mean": result.means.at[(protocol, row), key],
            "std": result.deviations.at[(protocol, row), key],
            "runs": result.num_finished(row, protocol),
            "paper": result.paper.at[(protocol, row, 0), key],
        }
        for protocol in result.protocols
        for row in result.rows_in(protocol)
        for key in result.study.columns
    )


def _csv(lines: Iterator[Mapping[str, object]]) -> str:
    """Return lines as CSV; no text is a formula of a spreadsheet."""
    import pandas as pd

    safe = pd.DataFrame(lines).map(lambda v: spreadsheet(v) if isinstance(v, str) else v)
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _protocol_table(result: StudyResult, protocol: str) -> Table:
    """Return ours beside the paper's numbers: best and second marked, replayed rows named."""
    keys, rows = result.study.columns, result.rows_in(protocol)
    own, deviations = result.means.loc[protocol], result.deviations.loc[protocol]
    paper = result.paper.xs((protocol, 0), level=("protocol", "seed"))
    printed = [key for key in keys if paper[key].notna().any()]
    headings = [h for k in keys for h in (METRICS[k].heading, *(["paper"] if k in printed else []))]
    best = {key: _best(result, protocol, key) for key in keys}
    marks: dict[tuple[int, int], Mark] = {}
    lines = []
    for number, row in enumerate(rows):
        line = [_marked(result, row, protocol), str(result.num_finished(row, protocol))]
        for key in keys:
            if mark := best[key].get(own.at[row, key] if row in result.ranked(protocol) else None):
                marks[number, len(line)] = mark
            line.append(METRICS[key].shown(own.at[row, key], deviations.at[row, key]))
            line += [METRICS[key].shown(paper.at[row, key])] if key in printed else []
        lines.append(line)
    lines += [_delta(result, protocol, printed)] if result.study.delta in rows else []
    notes = _notes(result, protocol, has_paper=bool(printed))
    return Table(protocol, ("Row", "Runs", *headings), lines, notes, 1, marks)


def _marked(result: StudyResult, row: str, protocol: str) -> str:
    """Return a row's name with its mark: "a", "a (2 of 3 replayed)" or "a (replayed)"."""
    replayed, runs = result.origin([row], protocol)
    some = f"{replayed} of {runs} " if replayed < runs else ""
    return f"{result.label(row)} ({some}replayed)" if replayed else result.label(row)


def _best(result: StudyResult, protocol: str, key: str) -> dict[float | None, Mark]:
    """Return the marks of the best and the second best mean; equal values share a mark."""
    if key not in _RANKED or result.lacks(protocol):
        return {}
    known = set(result.means.loc[protocol].loc[result.ranked(protocol), key].dropna())
    marks: Sequence[Mark] = ("best", "second")
    return dict(zip(sorted(known, reverse=key != "forgetting"), marks, strict=False))


def _delta(result: StudyResult, protocol: str, printed: Sequence[str]) -> list[str]:
    """Return the last row: the lead over the best other row, and parameters in percent."""
    study, means = result.study, result.means.loc[protocol]
    others = [row for row in result.ranked(protocol) if row != study.delta]
    texts = ["Δ", ""]
    for key in study.columns:
        own, text, value = means.at[study.delta, key], "–", math.nan
        if key in ("last", "average") and not result.lacks(protocol):
            value, text = own - means.loc[others, key].max(), "{:+.2f}"
        elif key in ("parameters", "backbones") and study.delta_against in means.index:
            value, text = 100 * (own / means.at[study.delta_against, key] - 1), "{:+.0f} %"
        texts.append("–" if math.isnan(value) else text.format(value))
        texts += [""] if key in printed else []
    return texts


def _notes(result: StudyResult, protocol: str, *, has_paper: bool) -> list[str]:
    rows, notes = result.rows_in(protocol), []
    missing = [result.label(row) for row in rows if not result.is_complete([row], protocol)]
    if missing:
        notes.append(f"not all runs are finished: {', '.join(missing)}")
    if result.lacks(protocol):
        notes.append("not all rows that compete were chosen: none is marked as best")
    if has_paper:
        first, name, dataset = result.place_in_paper(protocol)
        used = {row_in_paper(first, result.settings(row).paper, row)[0] for row in result.rows}
        tables = sorted(each.replace("-", " ").capitalize() for each in used)
        same = result.scale.same_data and not result.selection.overrides
        how = (
            "of one run each; the same data and settings"
            if same
            else "of other data or settings than ours: compare the order of rows, not the numbers"
        )
        notes.append(f"paper: printed numbers of {', '.join(tables)}, {dataset} {name}, {how}")
    if result.origin(rows, protocol)[0]:
        notes.append(REPLAYED)
    return notes


_FRONT = (
    "A pair is on a front if no other pair is better in backbones (fewer) or Avg without being "
    "worse in the other. Fronts of seeds: in how many seeds, each taken alone, it is on the front. "
    "Dominated beyond noise: the number of pairs that have no more backbones, and an Avg that is "
    "higher by more than two standard errors."
)


def _front_table(result: StudyResult, protocol: str) -> Iterator[Table]:
    """Yield where each pair of a grid stands, if there are runs of seeds that all pairs have."""
    places = front_places(*grid_numbers(result, protocol, "average"))
    if places.empty:
        return
    notes, seeds = [_FRONT], int(places["seeds"].iloc[0])
    if seeds < len(result.seeds):
        of = f"{seeds} of {len(result.seeds)}"
        notes.append(f"compared over the seeds that all pairs with a run have: {of}")
    if result.lacks(protocol, grids=True):
        notes.append("not all pairs were chosen: others may be better than those on the front")
    shown = {
        row: [
            "yes" if at.is_on_front else "no",
            f"{at.times} of {seeds}",
            METRICS["backbones"].shown(at.dominated_by),
        ]
        for row, at in places.iterrows()
    }
    rows = [[row, *shown.get(row, ["–"] * 3)] for row in result.grid_rows(protocol)]
    headings = ("Row", "Front of the means", "Fronts of seeds", "Dominated beyond noise by")
    yield Table(f"{protocol}: front of backbones and Avg", headings, rows, notes)


_MEASURE = (
    "Rise: Spearman's correlation of a measure with the position within a backbone's tasks, mean "
    "over its backbones; 1 if it rises with every task. A run resets if the measure falls at every "
    "expansion. Agreement: deviation between backbones at equal positions, relative to the mean; "
    "less is better. ±: standard deviation over runs."
)


def _measures(result: StudyResult, protocol: str) -> Iterator[Table]:
    """Yield a table for each row with measures: rise, reset and agreement, over seeds."""
    headings = ("Measure", "Runs", "Rise", "Falls at expansions", "Runs that reset", "Agreement")
    for row in result.rows_in(protocol):
        known = [trends_of(one.record) for one in result.runs(row, protocol)]
        names = dict.fromkeys(name for trends in known for name in trends)
        lines = [_measure(name, [t[name] for t in known if name in t]) for name in names]
        if lines:
            yield Table(f"{protocol}: measures of {result.label(row)}", headings, lines, [_MEASURE])


def _measure(name: str, trends: Sequence[Trend]) -> list[str]:
    falls = [fall for trend in trends for fall in trend.falls]
    resets = sum(trend.resets is True for trend in trends)
    return [
        name.replace("_", " "),
        str(len(trends)),
        _over_runs([trend.rise for trend in trends]),
        f"{sum(fall > 0 for fall in falls)} of {len(falls)}" if falls else "–",
        f"{resets} of {len(trends)}" if falls else "–",
        _over_runs([trend.agreement for trend in trends]),
    ]


def _over_runs(values: Sequence[float | None]) -> str:
    """Return mean and deviation of some runs; "–" if one is unknown."""
    import pandas as pd

    known = pd.Series(values, dtype=float)
    return Metric("", lambda _: None).shown(known.mean(skipna=False), known.std(skipna=False))


def claims_table(claims: Sequence[JudgedClaim]) -> Table:
    """Return the claims with one line for each comparison."""
    headings = ("Claim", "Protocol", "Compared", "Paper", "Ours", "Runs", "Verdict")
    rows = []
    for judged in claims:
        name = f"{judged.claim.id}: {judged.claim.says}" if judged.claim.says else judged.claim.id
        if len(judged.lines) > 1:
            rows.append([name, "", "", "", "", "", judged.verdict])
            name = judged.claim.id
        for line in judged.lines:
            found = line.judgement
            paper, ours = ("–" if d is None else f"{d:+.2f}" for d in (line.paper, found.mean))
            ours += "" if found.standard_error is None else f" ± {found.standard_error:.2f}"
            runs = str(found.count or "")
            rows.append([name, line.protocol, line.compared, paper, ours, runs, found.verdict])
    notes = [
        "Ours and paper: left − right + slack. Ours is a mean over seeds ± its standard error; "
        "within noise: at most two standard errors from 0."
    ]
    every = (line.judgement for judged in claims for line in judged.lines)
    if any(found.count and found.verdict == "not measured" for found in every):
        notes.append(
            "A number beside 'not measured' is that of the runs that are there: others are "
            "missing, or their rows were not chosen."
        )
    return Table("Claims", headings, rows, notes, 3)


def claims_csv(claims: Sequence[JudgedClaim]) -> str:
    """Return the claims with one line for each comparison, not rounded."""
    return _csv(
        {
            "claim": judged.claim.id,
            "protocol": line.protocol,
            "compared": line.compared,
            "paper": line.paper,
            "ours": line.judgement.mean,
            "standard_error": line.judgement.standard_error,
            "runs": line.judgement.count,
            "verdict": line.judgement.verdict,
        }
        for judged in claims
        for line in judged.lines
    )
