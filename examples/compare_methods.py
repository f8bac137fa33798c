"""Compare methods on scikit-learn's digits from Python, with short recipes.

Run it as ``python examples/compare_methods.py`` or name the methods:
``python examples/compare_methods.py der grace --epochs 12 --out comparison``.
It prints the table that ``grace report --table md`` prints and writes the report's page.
"""

import argparse
from pathlib import Path

from grace.configs.load import load_experiment
from grace.experiment import run_experiment
from grace.record import RunRecord
from grace.studies.report import write_report
from grace.studies.tables import comparison_table, to_markdown


def overrides(method: str, epochs: int) -> list[str]:
    """Shorten every recipe of a method to ``epochs`` with a cosine schedule."""
    later = {"grace": ["grow", "compress"], "der": ["grow"], "joint": []}.get(method, ["update"])
    lines = [f"method={method}"]
    for phase in ["base", *later]:
        lines += [f"method.{phase}.epochs={epochs}", f"method.{phase}.schedule=cosine"]
    return lines


def run(method: str, epochs: int, out: Path) -> RunRecord:
    """Run one method on the digits; its record goes to ``out/<method>``."""
    settings = load_experiment("digits", overrides(method, epochs))
    return run_experiment(settings, out / method)


def main() -> None:
    """Run the methods one after the other, then compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("methods", nargs="*", default=["replay", "grace"])
    parser.add_argument("--epochs", type=int, default=8, help="epochs of every phase")
    parser.add_argument("--out", type=Path, default=Path("runs/compare_methods"))
    arguments = parser.parse_args()
    records = [run(method, arguments.epochs, arguments.out) for method in arguments.methods]
    print(to_markdown(comparison_table(records)))
    print("report", write_report(records, arguments.out / "report.html"))


if __name__ == "__main__":
    main()
