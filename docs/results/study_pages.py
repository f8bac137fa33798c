"""Put the results of studies into their pages and into the README.

``python docs/results/study_pages.py STUDIES`` takes every study below a folder of ``grace study``
that a page here has markers for. Between them it writes the study's facts, claims, tables and
figures; the text around them is left alone. The README gets one line for each claim of the paper,
and a table of a study that it has markers for.
``--records RUNS`` packs the records of a folder of runs into ``data/RUNS.tar.xz``, from which the
same command makes the same tables without training.
"""

import argparse
import io
import re
import tarfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from grace.base.atomic import write_bytes, write_text
from grace.studies.schema import load_study

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
MARKER = re.compile(r"^<!-- study (.+) -->$", re.MULTILINE)
ROW = re.compile(r"\(docs/results/([\w-]+)\.md\) \| [^|]+ \|$")
CLAIM = re.compile(r"^\| (?P<name>[^|]*?)(?: \|[^|]*){5} \| (?P<verdict>[^|]+) \|$", re.MULTILINE)


def between(text: str, name: str, new: str) -> str:
    """Replace what stands between a page's two markers.

    Args:
        text: the page.
        name: words of the markers, as in "<!-- name -->" and "<!-- end name -->".
        new: what shall stand there.
    """
    first, last = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    start, end = text.index(first) + len(first), text.index(last)
    return f"{text[:start]}\n{new.strip()}\n\n{text[end:]}"


def results(study: Path) -> str:
    """Return the summary of a study below its title, headings one level lower, with its figures."""
    summary = (study / "summary.md").read_text(encoding="utf-8")
    text = summary[summary.index("Scale:") :]
    text = re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE)
    links = [f"![{path.stem}](figures/{study.name}-{path.name})" for path in figures(study)]
    return readable("\n\n".join([text.strip(), *links]))


def figures(study: Path) -> Sequence[Path]:
    """Return the figures of a study."""
    return sorted((study / "figures").glob("*.svg"))


def claims(study: Path) -> Iterator[str]:
    """Yield a row of the README's table for each claim of a study."""
    path = study / "claims.md"
    for found in CLAIM.finditer(path.read_text(encoding="utf-8") if path.exists() else ""):
        # Further lines of a claim have its id only; other protocols are not measured.
        if ": " in found["name"] and found["verdict"] not in ("Verdict", "not measured"):
            name = found["name"].partition(": ")[2]
            link = f"[{study.name}](docs/results/{study.name}.md)"
            yield readable(f"| {name} | {link} | {found['verdict']} |")


def first_table(study: Path) -> str:
    """Return the table of a study's first protocol."""
    text = (study / "table.md").read_text(encoding="utf-8")
    return readable(re.split(r"^### .*\n", text, flags=re.MULTILINE)[1])


def readable(text: str) -> str:
    """Write "<" as the documentation's tool understands it too."""
    return text.replace("\\<", "&lt;")


def pack(runs: Path, path: Path) -> None:
    """Write the records of all runs to an archive; equal records give equal bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for file in sorted([*runs.glob("*/run.json"), *runs.glob("*/tasks.jsonl")]):
            entry = tarfile.TarInfo(f"{runs.name}/{file.parent.name}/{file.name}")
            entry.size = file.stat().st_size
            archive.addfile(entry, io.BytesIO(file.read_bytes()))
    write_bytes(path, packed.getvalue())


def kept(readme: str, made: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the README's rows of studies that are not made anew, each with its study."""
    rows = readme[readme.index("<!-- claims -->") : readme.index("<!-- end claims -->")]
    for row in rows.splitlines():
        if (link := ROW.search(row)) is not None and link[1] not in made:
            yield link[1], row


def main() -> None:
    """Write the pages of the studies below a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("studies", type=Path, help="folder that grace study wrote")
    parser.add_argument("--records", type=Path, help="folder of runs to pack, by its name")
    given = parser.parse_args()
    studies: Path = given.studies
    made: dict[str, list[str]] = {}
    for page in sorted(HERE.glob("*.md")):
        for name in MARKER.findall(page.read_text(encoding="utf-8")):
            study = studies / name
            if not (study / "summary.md").exists():
                continue
            text = page.read_text(encoding="utf-8")
            write_text(page, between(text, f"study {name}", results(study)))
            for figure in figures(study):
                write_bytes(HERE / "figures" / f"{name}-{figure.name}", figure.read_bytes())
            made[name] = [] if load_study(name).beyond_paper else [*claims(study)]
    readme = README.read_text(encoding="utf-8")
    rows = [(name, row) for name in made for row in made[name]]
    rows = sorted([*kept(readme, made), *rows], key=lambda named: named[0])
    table = ["| claim | study | at small scale |", "|---|---|---|"]
    readme = between(readme, "claims", "\n".join([*table, *(row for _, row in rows)]))
    for name in made:
        if f"<!-- table {name} -->" in readme:
            readme = between(readme, f"table {name}", first_table(studies / name))
    write_text(README, readme)
    if given.records is not None:
        pack(given.records, HERE / "data" / f"{given.records.name}.tar.xz")


if __name__ == "__main__":
    main()
