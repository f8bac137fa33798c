"""Write the files of a study: plan, tables, claims, figures, summary and page."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from grace.base.atomic import remove_leftovers, write_text
from grace.base.files import inside
from grace.base.words import code_block, markdown, spreadsheet
from grace.runs import RunRecord
from grace.studies.drawing import write_svg
from grace.studies.front_table import FRONT_HEADINGS, front_tables
from grace.studies.made_study import MadeStudy
from grace.studies.measure_table import MEASURE_HEADINGS, measure_tables
from grace.studies.sheet import Sheet
from grace.studies.study_cells import scale_name
from grace.studies.study_claims import JudgedClaim, claims_sheet, judge_claims
from grace.studies.study_figures import study_figures
from grace.studies.study_page import write_study_page
from grace.studies.study_results import Results
from grace.studies.study_sheets import study_sheets
from grace.studies.study_table import protocol_tables, to_csv
from grace.studies.summary import cost, notes_of, provenance


def write_study(made: MadeStudy, command: str = "") -> tuple[Path, ...]:
    """Write all files of a study into its folder; those of earlier calls are replaced.

    Args:
        made: the study with its records, at least one.
        command: command that made it; empty: not shown.

    Returns:
        The paths, the page first.
    """
    results, folder = Results(made), made.directory
    sheets, claims = study_sheets(results), judge_claims(results)
    texts = {
        "summary.md": _summary(made, sheets, claims, command),
        "table.md": _tables(sheets),
        "table.csv": to_csv(protocol_tables(results), results),
        "table.tex": "\n".join(f"% {name}\n{sheet.to_latex()}" for name, sheet in sheets),
        "plan.csv": _cells_csv(made),
    }
    if claims:
        texts["claims.md"] = claims_sheet(claims).to_markdown()
        texts["claims.csv"] = _claims_csv(claims)
    if fronts := front_tables(results):
        texts["front.csv"] = _csv(FRONT_HEADINGS, [line for t in fronts for line in t.numbers()])
    if measures := measure_tables(results):
        lines = [line for table in measures for line in table.numbers()]
        texts["measures.csv"] = _csv(MEASURE_HEADINGS, lines)
    inside(folder, "figures").mkdir(exist_ok=True)
    for place in (folder, folder / "figures"):
        remove_leftovers(place)
    for name, text in texts.items():
        write_text(folder / name, text)
    drawn = [
        write_svg(inside(folder, "figures", f"{name}.svg"), panels)
        for name, panels in study_figures(results).items()
    ]
    page = write_study_page(results, sheets, claims, drawn, folder / "report.html", command)
    return (page, *(folder / name for name in texts), *drawn)


def _summary(
    made: MadeStudy,
    sheets: Sequence[tuple[str, Sheet]],
    claims: Sequence[JudgedClaim],
    command: str,
) -> str:
    records: Sequence[RunRecord] = made.records
    scale = scale_name(made.study, made.selection.scale)
    parts = [
        f"# {markdown(made.study.heading)}",
        f"Scale: {markdown(scale)}; mean ± standard deviation over seeds.",
        *([code_block(command, "bash")] if command else []),
        provenance(records),
        cost(records, made.at_once),
        *map(markdown, [*made.notes, *notes_of(records)]),
        *(f"{markdown(name)} failed: {markdown(why)}" for name, why in made.failures.items()),
        *(["## Claims", claims_sheet(list(claims)).to_markdown().strip()] if claims else []),
        "## Results",
        _tables(sheets).strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _tables(sheets: Sequence[tuple[str, Sheet]]) -> str:
    return "\n".join(f"### {markdown(name)}\n\n{sheet.to_markdown()}" for name, sheet in sheets)


def _cells_csv(made: MadeStudy) -> str:
    """Return the cells with what became of them, and where their records lie."""
    rows = []
    for cell in made.cells:
        found = made.found.get(cell.run)
        state = "missing" if found is None else "replayed" if found.is_replayed else "done"
        place = "" if found is None else str(found.record.directory)
        rows.append([cell.protocol, cell.row, cell.seed, state, place])
    return _csv(["protocol", "row", "seed", "state", "record"], rows)


def _claims_csv(claims: Sequence[JudgedClaim]) -> str:
    rows = [
        [
            line.claim.id,
            line.protocol,
            line.compared,
            "" if line.paper is None else line.paper,
            line.judgement.mean if line.judgement else "",
            "" if line.judgement is None else line.judgement.standard_error,
            line.judgement.count if line.judgement else 0,
            line.verdict,
        ]
        for judged in claims
        for line in judged.lines
    ]
    names = ["claim", "protocol", "compared", "paper", "ours", "standard_error", "runs", "verdict"]
    return _csv(names, rows)


def _csv(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([spreadsheet(c) if isinstance(c, str) else c for c in row] for row in rows)
    return out.getvalue()
