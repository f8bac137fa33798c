"""Tables of texts: what a study, a comparison and a report show, and their forms.

A table shows rounded numbers. Programs read ``table.csv`` and ``claims.csv``, which do not round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from grace.base.words import latex, printable, spreadsheet
from grace.studies.claims import JudgedClaim, Judgement
from grace.studies.frame import METRICS, Group, Metric, numbers_of
from grace.studies.measures import Trend, trends_of
from grace.studies.paper import row_in_paper
from grace.studies.pareto import by_seed, front_places
from grace.studies.results import REPLAYED, Results

if TYPE_CHECKING:
    import pandas as pd

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
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    num_names: int = 1
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)

    def to_latex(self) -> str:
        r"""Return the table as a LaTeX ``tabular`` with booktabs rules; all texts are escaped."""
        forms = {None: "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
        lines = [
            [forms[self.marks.get((r, c))].format(latex(text)) for c, text in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]
        columns = "l" * self.num_names + "r" * (len(self.headings) - self.num_names)
        return "\n".join(
            [
                *(f"% {printable(' '.join(n.split()))}" for n in (self.name, *self.notes)),
                r"% needs \usepackage{booktabs}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                " & ".join(map(latex, self.headings)) + r" \\",
                r"\midrule",
                *(" & ".join(line) + r" \\" for line in lines),
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
        )


def study_tables(results: Results) -> list[Table]:
    """Return the tables of a study: results by protocol, then fronts, then measures."""
    figures = results.made.study.figures
    return [
        *(_protocol_table(results, protocol) for protocol in results.protocols),
        *(t for p in results.protocols if "front" in figures and (t := _front_table(results, p))),
        *(t for p in results.protocols if "measures" in figures for t in _measures(results, p)),
    ]


def numbers_csv(results: Results) -> str:
    """Return all numbers of a study, a line for each row, protocol and metric, not rounded."""
    import pandas as pd

    lines = [
        {
            "protocol": spreadsheet(protocol),
            "experiment": spreadsheet(results.scale.protocols[protocol].experiment),
            "row": spreadsheet(row),
            "metric": key,
            "mean": results.means.at[(protocol, row), key],
            "std": results.deviations.at[(protocol, row), key],
            "runs": len(results.found(row, protocol)),
            "paper": results.paper.at[(protocol, row, 0), key],
        }
        for protocol in results.protocols
        for row in results.rows_in(protocol)
        for key in results.made.study.columns
    ]
    return str(pd.DataFrame(lines).to_csv(index=False, lineterminator="\n"))


def _protocol_table(results: Results, protocol: str) -> Table:
    """Return ours beside the paper's numbers: best and second marked, replayed rows named."""
    keys, rows = results.made.study.columns, results.rows_in(protocol)
    own, deviations = results.means.loc[protocol], results.deviations.loc[protocol]
    paper = results.paper.xs((protocol, 0), level=("protocol", "seed"))
    printed = [key for key in keys if paper[key].notna().any()]
    headings = [h for k in keys for h in (METRICS[k].heading, *(["paper"] if k in printed else []))]
    marks: dict[tuple[int, int], Mark] = {}
    lines = []
    for number, row in enumerate(rows):
        line = [results.marked(row, protocol), str(len(results.found(row, protocol)))]
        for key in keys:
            if mark := _mark(results, protocol, key, float(own.at[row, key]), row):
                marks[number, len(line)] = mark
            line.append(METRICS[key].shown(own.at[row, key], deviations.at[row, key]))
            line += [METRICS[key].shown(paper.at[row, key])] if key in printed else []
        lines.append(tuple(line))
    lines += [_delta(results, protocol, printed)] if results.made.study.delta in rows else []
    notes = _notes(results, protocol, has_paper=bool(printed))
    return Table(protocol, ("Row", "Runs", *headings), tuple(lines), notes, 1, marks)


def _mark(results: Results, protocol: str, key: str, mean: float, row: str) -> Mark | None:
    """Return the mark of the best and the second best mean of a column; equal values share it."""
    ranked = results.ranked(protocol)
    if key not in _RANKED or row not in ranked or results.lacks_rivals(protocol):
        return None
    known = set(results.means.loc[protocol].loc[ranked, key].dropna())
    order = sorted(known, reverse=key != "forgetting")
    return "best" if mean in order[:1] else "second" if mean in order[1:2] else None


def _delta(results: Results, protocol: str, printed: Sequence[str]) -> tuple[str, ...]:
    """Return the last row: the lead over the best other row, and parameters in percent."""
    study, means = results.made.study, results.means.loc[protocol]
    others = [row for row in results.ranked(protocol) if row != study.delta]
    texts = ["Δ", ""]
    for key in study.columns:
        text, own = "–", means.at[study.delta, key]
        if key in ("last", "average") and not results.lacks_rivals(protocol):
            lead = own - means.loc[others, key].max()
            text = "–" if math.isnan(lead) else f"{lead:+.2f}"
        elif key in ("parameters", "backbones") and study.delta_against in means.index:
            share = own / means.at[study.delta_against, key]
            text = "–" if math.isnan(share) else f"{100 * (share - 1):+.0f} %"
        texts += [text, *([""] if key in printed else [])]
    return tuple(texts)


def _notes(results: Results, protocol: str, *, has_paper: bool) -> tuple[str, ...]:
    rows, notes = results.rows_in(protocol), []
    missing = [results.label(row) for row in rows if not results.is_complete([row], protocol)]
    if missing:
        notes.append(f"not all runs are finished: {', '.join(missing)}")
    if results.lacks_rivals(protocol):
        notes.append("not all rows that compete were chosen: none is marked as best")
    if has_paper:
        first, name, dataset = results.place_in_paper(protocol)
        used = {row_in_paper(first, results.settings(row).paper, row)[0] for row in results.rows}
        tables = sorted(each.replace("-", " ").capitalize() for each in used)
        same = results.scale.same_data and not results.made.selection.overrides
        how = (
            "of one run each; the same data and settings"
            if same
            else "of other data or settings than ours: compare the order of rows, not the numbers"
        )
        notes.append(f"paper: printed numbers of {', '.join(tables)}, {dataset} {name}, {how}")
    if results.origin(rows, protocol)[0]:
        notes.append(REPLAYED)
    return tuple(notes)


_FRONT = (
    "A pair is on a front if no other pair is better in backbones (fewer) or Avg without being "
    "worse in the other. Fronts of seeds: in how many seeds, each taken alone, it is on the front. "
    "Dominated beyond noise: the number of pairs that have no more backbones, and an Avg that is "
    "higher by more than two standard errors."
)


def _front_table(results: Results, protocol: str) -> Table | None:
    """Return where each pair of a grid stands; ``None``: no pair has a run that all seeds have."""
    places = front_places(by_seed(results, protocol, "average"))
    if not places:
        return None
    notes, seeds = [_FRONT], next(iter(places.values())).seeds
    if seeds < len(results.seeds):
        of = f"{seeds} of {len(results.seeds)}"
        notes.append(f"compared over the seeds that all pairs with a run have: {of}")
    if results.lacks_points(protocol):
        notes.append("not all pairs were chosen: others may be better than those on the front")
    rows = []
    for row in results.grid_rows(protocol):
        texts = ("–", "–", "–")
        if (at := places.get(row)) is not None:
            dominated = "–" if at.dominated_by is None else str(at.dominated_by)
            on = "yes" if at.is_on_front else "no"
            texts = (on, f"{at.times} of {at.seeds}", dominated)
        rows.append((row, *texts))
    headings = ("Row", "Front of the means", "Fronts of seeds", "Dominated beyond noise by")
    return Table(f"{protocol}: front of backbones and Avg", headings, tuple(rows), tuple(notes))


_MEASURE = (
    "Rise: Spearman's correlation of a measure with the position within a backbone's tasks, mean "
    "over its backbones; 1 if it rises with every task. A run resets if the measure falls at every "
    "expansion. Agreement: deviation between backbones at equal positions, relative to the mean; "
    "less is better. ±: standard deviation over runs."
)


def _measures(results: Results, protocol: str) -> list[Table]:
    """Return a table for each row with measures: rise, reset and agreement, over seeds."""
    headings = ("Measure", "Runs", "Rise", "Falls at expansions", "Runs that reset", "Agreement")
    tables = []
    for row in results.rows_in(protocol):
        known = [trends_of(one.record) for one in results.found(row, protocol)]
        names = dict.fromkeys(name for trends in known for name in trends)
        lines = [_measure(name, [t[name] for t in known if name in t]) for name in names]
        if lines:
            name = f"{protocol}: measures of {results.label(row)}"
            tables.append(Table(name, headings, tuple(lines), (_MEASURE,)))
    return tables


def _measure(name: str, trends: Sequence[Trend]) -> tuple[str, ...]:
    falls = [fall for trend in trends for fall in trend.falls]
    resets = sum(trend.resets is True for trend in trends)
    return (
        name.replace("_", " "),
        str(len(trends)),
        _over_runs([trend.rise for trend in trends]),
        f"{sum(fall > 0 for fall in falls)} of {len(falls)}" if falls else "–",
        f"{resets} of {len(trends)}" if falls else "–",
        _over_runs([trend.agreement for trend in trends]),
    )


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
    return Table("Claims", headings, tuple(rows), tuple(notes), 3)


def claims_csv(claims: Sequence[JudgedClaim]) -> str:
    """Return the claims with one line for each comparison, not rounded."""
    import pandas as pd

    lines = [
        {
            "claim": spreadsheet(line.claim.id),
            "protocol": spreadsheet(line.protocol),
            "compared": spreadsheet(line.compared),
            "paper": line.paper,
            "ours": line.judgement.mean if line.judgement else None,
            "standard_error": line.judgement.standard_error if line.judgement else None,
            "runs": line.judgement.count if line.judgement else 0,
            "verdict": line.verdict,
        }
        for judged in claims
        for line in judged.lines
    ]
    return str(pd.DataFrame(lines).to_csv(index=False, lineterminator="\n"))


def _ours(judgement: Judgement | None) -> tuple[str, str]:
    if judgement is None:
        return "–", ""
    error, mean = judgement.standard_error, f"{judgement.mean:+.2f}"
    return (mean if error is None else f"{mean} ± {error:.2f}"), str(judgement.count)


_COMPARED = ("last", "average", "forgetting", "backward_transfer", "task_aware_last", "backbones")
_COSTS = ("parameters", "megabytes", "seconds")


def comparison_numbers(groups: Sequence[Group]) -> "pd.DataFrame":
    """Return means, deviations and number of complete runs by experiment, method and variant."""
    import pandas as pd

    lines = []
    for group in groups:
        own = numbers_of(group.complete)
        line: dict[str, object] = {
            "experiment": spreadsheet(group.experiment),
            "method": spreadsheet(group.method),
            "variant": spreadsheet(group.variant),
            "runs": len(own),
        }
        for key in (*_COMPARED, *_COSTS):
            line |= {f"{key}_mean": own[key].mean(), f"{key}_std": own[key].std()}
        lines.append(line)
    return pd.DataFrame(lines)


def comparison_table(groups: Sequence[Group]) -> Table:
    """Return a line for each group of runs: mean and deviation over its complete runs.

    Accuracies are the primary classifier's, at the end of the stream
    (docs/protocols.md#metrics); task-aware ones (TA) have a column where a run has them.
    """
    numbers = comparison_numbers(groups)
    keys = [key for key in (*_COMPARED, *_COSTS) if numbers[f"{key}_mean"].notna().any()]
    lines = [
        (
            group.experiment,
            group.label,
            str(len(group.complete)),
            *(
                METRICS[k].shown(numbers.at[n, f"{k}_mean"], numbers.at[n, f"{k}_std"])
                for k in keys
            ),
        )
        for n, group in enumerate(groups)
    ]
    headings = ("Experiment", "Method", "Runs", *(METRICS[key].heading for key in keys))
    notes = [note for group in groups for note in group.notes]
    return Table("Comparison", headings, tuple(lines), tuple(dict.fromkeys(notes)), 2)
