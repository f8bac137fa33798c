"""Compare methods on scikit-learn's digits from Python, with short recipes.

Run it as ``python examples/compare_methods.py``, or name methods and settings:
``python examples/compare_methods.py der grace seed=2 --epochs 12 --out comparison``.
It prints the table that ``grace report`` prints and writes the report's page.
"""

import argparse
from pathlib import Path

from grace.base.errors import GraceError
from grace.runs.model import RunRecord
from grace.runs.run import run as run_experiment
from grace.settings.load import load_experiment
from grace.studies.report import write_report
from grace.studies.results import compared
from grace.studies.table import study_tables


def overrides(method: str, epochs: int) -> list[str]:
    """Shorten every recipe of a method to ``epochs`` with a cosine schedule."""
    later = {"grace": ["grow", "compress"], "der": ["grow"], "joint": []}.get(method, ["update"])
    lines = [f"method={method}"]
    for phase in ["base", *later]:
        lines += [f"method.{phase}.epochs={epochs}", f"method.{phase}.schedule=cosine"]
    return lines


def run(method: str, settings: list[str], out: Path) -> RunRecord:
    """Run one method on the digits; its record goes to ``out/<method>``."""
    return run_experiment(load_experiment("digits", settings), directory=out / method)


def main() -> None:
    """Run the methods one after the other, then compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", metavar="METHOD|KEY=VALUE")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of every phase")
    parser.add_argument("--out", type=Path, default=Path("runs/compare_methods"))
    arguments = parser.parse_args()
    methods = [word for word in arguments.words if "=" not in word] or ["replay", "grace"]
    more = [word for word in arguments.words if "=" in word]
    records = [
        run(method, overrides(method, arguments.epochs) + more, arguments.out) for method in methods
    ]
    [table] = study_tables(compared(records))
    for line in (table.headings, *table.rows):
        print(" | ".join(line))
    print("report", write_report(records, arguments.out / "report.html"))


if __name__ == "__main__":
    try:
        main()
    except GraceError as error:  # A wrong setting, or a loss that is not finite.
        raise SystemExit(f"error: {error}") from None
