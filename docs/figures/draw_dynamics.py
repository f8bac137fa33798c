"""Draw one run of GRACE over its tasks: accuracy, saturation against threshold, backbones.

``python docs/figures/draw_dynamics.py RUN --out docs/figures/dynamics.svg`` reads the directory of
a run.
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from grace.runs.model import RunRecord
from grace.runs.record import read_record

COLOURS = {"grow": "#D55E00", "compress": "#0072B2"}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7b8794"


def draw(record: RunRecord, path: Path) -> None:
    """Write the figure of a run.

    Raises:
        ValueError: the run has no finished task.
    """
    if not record.tasks:
        raise ValueError("the run has no finished task")
    mpl.rcParams |= {"svg.hashsalt": "grace", "font.family": "DejaVu Sans", "font.size": 10}
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.2))
    tasks = [task.task for task in record.tasks]
    accuracy, saturation, backbones = panels
    for name, colour in (("new", GREEN), ("all", BLUE), ("old", GREY)):
        found = [(t.task, getattr(t.accuracy, name)) for t in record.tasks if t.accuracy]
        shown = [(task, value) for task, value in found if value is not None]
        if shown:
            accuracy.plot(*zip(*shown, strict=True), "o-", color=colour, label=f"{name} classes")
    accuracy.set_title("Accuracy (%)", loc="left")
    for name, colour, line in (("saturation", BLUE, "o-"), ("threshold", ORANGE, "o--")):
        found = [(task.task, getattr(task, name)) for task in record.tasks]
        shown = [(task, value) for task, value in found if value is not None]
        if shown:
            saturation.plot(*zip(*shown, strict=True), line, color=colour, label=name)
    saturation.set_title("Saturation and threshold", loc="left")
    looks = [COLOURS.get(task.verdict or "", GREY) for task in record.tasks]
    backbones.bar(tasks, [task.backbones for task in record.tasks], 0.6, color=looks)
    for task in record.tasks:
        backbones.text(task.task, 0.1, task.verdict or "", ha="center", color="white", rotation=90)
    backbones.set_title("Backbones", loc="left")
    backbones.set_yticks(range(max(task.backbones for task in record.tasks) + 1))
    for axes in panels:
        axes.set_xticks(tasks)
        axes.set_xlabel("task")
        axes.grid(axis="y", color="#dfe4ea")
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=80)
    plt.close(figure)


def main() -> None:
    """Read the run and write the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory of a run")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/dynamics.svg"))
    given = parser.parse_args()
    draw(read_record(given.run), given.out)
    print(given.out)


if __name__ == "__main__":
    main()
