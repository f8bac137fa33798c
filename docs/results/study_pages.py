"""Make the results on these pages again, from the records in ``data/``, without training.

``python docs/results/study_pages.py`` writes, between the markers of each page, the claims and
tables of a study, and its figures; the text around them is left alone. ``--pack RUNS`` packs the
records of a folder of runs into ``data/RUNS.tar.xz`` first.
"""

import argparse
import io
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from grace.base.atomic import write_bytes, write_text
from grace.base.words import counted, in_seconds, markdown
from grace.studies.claims import JudgedClaim, judge_claims
from grace.studies.figures import study_figures
from grace.studies.plan import Plan, Selection
from grace.studies.results import StudyResult
from grace.studies.schema import load_study
from grace.studies.table import Table, study_tables

HERE = Path(__file__).parent
XEON, EPYC = "xeon-records", "study-records"
ORDER = tuple(
    f"{method}{variant}"
    for variant in ("", "-prior", "-few", "-few-prior")
    for method in ("icarl", "foster", "der", "grace")
)
STUDIES: Mapping[str, tuple[str, Selection]] = {
    "ablation": (XEON, Selection()),
    "autoaugment": (EPYC, Selection(protocols=("b0i4",))),
    "benchmark": (XEON, Selection()),
    "class-prior": (EPYC, Selection()),
    "factors": (EPYC, Selection()),
    "grid": (XEON, Selection()),
    "initialisation": (XEON, Selection()),
    "memory-aligned": (XEON, Selection()),
    "order": (XEON, Selection(rows=ORDER)),
    "overview": (XEON, Selection()),
    "saturation": (XEON, Selection()),
    "sensitivity": (XEON, Selection()),
    "versatility": (XEON, Selection()),
}
"""The archive and the part of each study that has been run."""
MARKER = re.compile(r"^<!-- study (.+) -->$", re.MULTILINE)


def between(text: str, name: str, new: str) -> str:
    """Replace what stands between "<!-- name -->" and "<!-- end name -->" of a page."""
    first, last = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    start, end = text.index(first) + len(first), text.index(last)
    return f"{text[:start]}\n{new.strip()}\n\n{text[end:]}"


def results_of(name: str, folder: Path) -> StudyResult:
    """Return the numbers of a study from an unpacked archive."""
    archive, selection = STUDIES[name]
    return StudyResult.of(Plan(load_study(name), selection, [folder / archive], any_version=True))


def block(name: str, results: StudyResult, figures: Sequence[str]) -> str:
    """Return what stands between the markers of a study: command, claims, tables, figures."""
    archive, selection = STUDIES[name]
    records = results.records
    chosen = [f" --rows {','.join(selection.rows)}"] if selection.rows else []
    chosen += [f" --protocols {','.join(selection.protocols)}"] if selection.protocols else []
    command = f"grace study {name} data.root=tiny-imagenet{''.join(chosen)} --runs {archive}"
    days = sorted({record.info.started[:10] for record in records})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    machine = "Intel Xeon" if archive == XEON else "AMD EPYC"
    work = in_seconds(sum(record.seconds for record in records))
    parts = [
        f"```bash\n{command}\n```",
        f"{counted(len(records), 'run')}, {work} of work, {when}, {machine}.",
    ]
    claims = judge_claims(results)
    if claims:
        lines = [_claim(judged) for judged in claims]
        headings = ["claim", "compared", "ours", "paper", "verdict"]
        parts.append(table(headings, lines, num_names=2))
    for found in study_tables(results):
        parts += [f"**{markdown(found.name)}**", _shown(found)]
    parts += [f"![{figure}](figures/{name}-{figure}.svg)" for figure in figures]
    return "\n\n".join(parts)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], num_names: int = 1) -> str:
    """Return a Markdown table of escaped texts."""
    rule = ["---"] * num_names + ["---:"] * (len(headings) - num_names)
    return "\n".join(f"|{'|'.join(row)}|" for row in (headings, rule, *rows))


def _shown(found: Table) -> str:
    forms = {None: "{}", "best": "**{}**", "second": "<u>{}</u>"}
    rows = [
        [forms[found.marks.get((r, c))].format(markdown(text)) for c, text in enumerate(row)]
        for r, row in enumerate(found.rows)
    ]
    return table([*map(markdown, found.headings)], rows, found.num_names)


def _claim(judged: JudgedClaim) -> list[str]:
    """Return one row for a claim: of several lines, how many hold, and the one of least mean."""
    known = [line for line in judged.lines if line.judgement.count]
    if not known:
        return [f"{judged.claim.id}: {markdown(judged.claim.says)}", "", "–", "–", judged.verdict]
    least = min(known, key=lambda line: line.judgement.mean or 0.0)
    error = least.judgement.standard_error
    ours = f"{least.judgement.mean:+.2f}" + (f" ± {error:.2f}" if error is not None else "")
    counts = Counter(line.judgement.verdict for line in judged.lines)
    several = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    verdict = judged.verdict if len(judged.lines) == 1 else f"{judged.verdict} ({several})"
    where = f" ({least.protocol})" if least.protocol else ""
    return [
        f"{markdown(judged.claim.id)}: {markdown(judged.claim.says)}",
        markdown(least.compared) + where,
        ours,
        "–" if least.paper is None else f"{least.paper:+.2f}",
        verdict,
    ]


def unpacked(folder: Path) -> None:
    """Unpack the archives of records into a folder."""
    for name in (XEON, EPYC):
        with tarfile.open(HERE / "data" / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")


def pack(runs: Path, path: Path) -> None:
    """Write the records of all runs to an archive; equal records give equal bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for file in sorted([*runs.glob("*/run.json"), *runs.glob("*/tasks.jsonl")]):
            entry = tarfile.TarInfo(f"{runs.name}/{file.parent.name}/{file.name}")
            entry.size = file.stat().st_size
            archive.addfile(entry, io.BytesIO(file.read_bytes()))
    write_bytes(path, packed.getvalue())


def main() -> None:
    """Write the results into all pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pack", type=Path, help="folder of runs to pack, by its name")
    given = parser.parse_args()
    if given.pack is not None:
        pack(given.pack, HERE / "data" / f"{given.pack.name}.tar.xz")
    claims: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        unpacked(Path(folder))
        for page in sorted(HERE.glob("*.md")):
            for name in MARKER.findall(page.read_text(encoding="utf-8")):
                results = results_of(name, Path(folder))
                drawn = study_figures(results)
                for figure, svg in drawn.items():
                    write_text(HERE / "figures" / f"{name}-{figure}.svg", svg)
                new = block(name, results, list(drawn))
                text = page.read_text(encoding="utf-8")
                write_text(page, between(text, f"study {name}", new))
                if not load_study(name).beyond_paper:
                    link = f"[{name}]({page.name})"
                    claims += [
                        [markdown(judged.claim.says), link, judged.verdict]
                        for judged in judge_claims(results)
                        if judged.verdict != "not measured"
                    ]
    index = (HERE / "index.md").read_text(encoding="utf-8")
    summary = table(["claim", "study", "at small scale"], claims, num_names=3)
    write_text(HERE / "index.md", between(index, "claims", summary))


if __name__ == "__main__":
    main()
