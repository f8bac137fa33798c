"""The lines that ``grace study`` prints: its plan, and its result."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from grace.base.words import counted, in_bytes, in_seconds
from grace.cli.columns import aligned
from grace.studies.made_study import MadeStudy
from grace.studies.study_cells import scale_name
from grace.studies.study_claims import claims_sheet, judge_claims
from grace.studies.study_plan import StudyPlan
from grace.studies.study_results import Results
from grace.studies.study_sheets import study_sheets


def plan_lines(plan: StudyPlan) -> Iterator[str]:
    """Yield a line for each row and protocol with the state of its cells, then the sums."""
    states = {planned.run: planned for planned in plan.runs}
    groups = defaultdict[tuple[str, str], list[int]](list)
    for place, cell in enumerate(plan.cells):
        groups[cell.protocol, cell.row].append(place)
    yield f"{plan.study.name}, scale {scale_name(plan.study, plan.selection.scale)}"
    rows = [["protocol", "row", "seeds", "state", "time to come"]]
    for (protocol, row), places in groups.items():
        cells = [plan.cells[place] for place in places]
        found = [states[cell.run] for cell in cells]
        counted = Counter(one.state for one in found)
        state = ", ".join(f"{count} {name}" for name, count in counted.items())
        left = [one.seconds for one in found if not one.is_done]
        known = [seconds for seconds in left if seconds is not None]
        time = "" if not left else in_seconds(sum(known)) if len(known) == len(left) else "?"
        rows.append([protocol, row, ",".join(str(cell.seed) for cell in cells), state, time])
    yield from aligned(rows, "<<<<>")
    listed = {cell.run for cell in plan.cells}
    more = [planned for planned in plan.left if planned.run not in listed]
    if more:
        yield f"and {len(more)} run{'' if len(more) == 1 else 's'} that these need"
    yield from _sums(plan)


def _sums(plan: StudyPlan) -> Iterator[str]:
    left, total = len(plan.left), len(plan.runs)
    time = (
        "an unknown time ('?': no finished run on this stream yet)"
        if plan.seconds is None
        else f"about {in_seconds(plan.seconds)} of work"
    )
    size = in_bytes(left * plan.bytes_each)
    yield f"{counted(total, 'run')}: {total - left} done, {left} to make" + (
        f", {time}, {size} of records" if left else ""
    )
    unlike = sum(planned.state == "made differently" for planned in plan.runs)
    if unlike:
        yield f"{unlike} of them were made with other versions, and will be made again"


def result_lines(made: MadeStudy) -> Iterator[str]:
    """Yield the tables, the claims, the failures and the paths of the files."""
    results = Results(made)
    claims = judge_claims(results)
    sheets = study_sheets(results) if made.found else []
    for name, sheet in [*sheets, *([("claims", claims_sheet(claims))] if claims else [])]:
        rows = [list(sheet.headings), *([cell.text for cell in row] for row in sheet.rows)]
        numbers = len(sheet.headings) - sheet.num_names
        yield from (name, *aligned(rows, "<" * sheet.num_names + ">" * numbers), *sheet.notes, "")
    yield from made.notes
    yield from (f"{name} failed: {why}" for name, why in made.failures.items())
    for name in ("report.html", "summary.md"):
        if (made.directory / name).is_file():
            yield f"{name:<12} {made.directory / name}"
