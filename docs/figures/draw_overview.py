"""Draw accuracy and bytes over the tasks: GRACE beside DER and a single network.

``python docs/figures/draw_overview.py`` reads the records in ``docs/results/data`` and writes
``overview.svg`` beside itself; ``--out FILE`` writes another file, ``.png`` too.
"""

import argparse
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from grace.runs.model import RunRecord, TaskRecord
from grace.runs.record import read_records

HERE = Path(__file__).parent
ARCHIVE = HERE.parent / "results" / "data" / "xeon-records.tar.xz"
EXPERIMENT = "tiny-imagenet-16px"
ROWS: tuple[tuple[str, dict[str, object]], ...] = (
    ("grace", {"class_prior": "balanced", "threshold": 0.65, "threshold_decay": 0.96}),
    ("der", {"class_prior": "balanced"}),
    ("icarl", {"class_prior": "none"}),
)
LOOKS = {
    "grace": ("GRACE +prior", "#0072B2"),
    "der": ("DER +prior", "#D55E00"),
    "icarl": ("iCaRL", "#7b8794"),
}
INK, FAINT = "#1f2933", "#dfe4ea"


def chosen(records: Sequence[RunRecord], method: str, wanted: dict[str, object]) -> list[RunRecord]:
    """Return the runs of one row, one for each seed."""
    found: dict[int, RunRecord] = {}
    for record in records:
        config = record.info.config
        own = config["method"]
        phase = own.get("grow") or own.get("update")
        if (
            record.info.experiment == EXPERIMENT
            and own["name"] == method
            and all(own.get(key, "none") == value for key, value in wanted.items())
            and (phase["epochs"], config["memory"]["size"]) == (34, 400)
        ):
            found.setdefault(record.seed or 0, record)
    return [found[seed] for seed in sorted(found)]


def over_tasks(
    runs: Sequence[RunRecord], value: Callable[[TaskRecord], float]
) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation over the runs after each task."""
    by_task = list(zip(*([value(task) for task in run.tasks] for run in runs), strict=True))
    return [mean(one) for one in by_task], [stdev(one) for one in by_task]


def draw_accuracy(axes: Axes, method: str, runs: Sequence[RunRecord]) -> tuple[float, str]:
    """Draw a line of accuracy on all classes seen; return where it ends, and its label."""
    name, colour = LOOKS[method]
    values, spread = over_tasks(runs, lambda task: task.accuracy.all if task.accuracy else 0.0)
    tasks = range(1, len(values) + 1)
    axes.plot(tasks, values, color=colour, marker="o", zorder=3 if method == "grace" else 2)
    return values[-1], f"{name}  {values[-1]:.1f} ± {spread[-1]:.1f}"


def draw_bytes(axes: Axes, method: str, runs: Sequence[RunRecord]) -> None:
    """Draw one line of megabytes, weights and stored images, and count its backbones."""
    name, colour = LOOKS[method]
    sizes, _ = over_tasks(runs, lambda task: (task.bytes.weights + task.bytes.exemplars) / 1e6)
    backbones, _ = over_tasks(runs, lambda task: task.backbones)
    tasks = range(1, len(sizes) + 1)
    axes.plot(tasks, sizes, color=colour, marker="o", zorder=3 if method == "grace" else 2)
    many = f"{backbones[-1]:g} backbone" + ("s" if backbones[-1] > 1 else "")
    axes.annotate(
        f"{name}\n{sizes[-1]:.1f} MB, {many}",
        (len(sizes), sizes[-1]),
        xytext=(10, 0), textcoords="offset points", va="center", color=colour,
    )  # fmt: skip


def draw(held: dict[str, list[RunRecord]], path: Path) -> None:
    """Write the figure."""
    mpl.rcParams |= {
        "svg.hashsalt": "grace", "font.family": "DejaVu Sans", "font.size": 11,
        "lines.linewidth": 2.4, "lines.markersize": 6, "text.color": INK,
    }  # fmt: skip
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.1), width_ratios=(1, 1))
    ends = {}
    for method, runs in held.items():
        ends[method] = draw_accuracy(left, method, runs)
        draw_bytes(right, method, runs)
    num_tasks = len(next(iter(held.values()))[0].tasks)
    for place, method in enumerate(sorted(ends, key=lambda name: -ends[name][0])):
        height, label = ends[method]
        left.annotate(
            label, (num_tasks, height), xytext=(10, 13 - 14 * place), textcoords="offset points",
            va="center", color=LOOKS[method][1],
            fontweight="bold" if method == "grace" else "normal",
        )  # fmt: skip
    left.set_title("Accuracy on all classes seen (%)", loc="left", fontsize=12.5, pad=12)
    right.set_title("Megabytes of weights and stored images", loc="left", fontsize=12.5, pad=12)
    right.set_ylim(0, 6.3)
    for axes in (left, right):
        axes.set_xticks(range(1, num_tasks + 1))
        axes.set_xlim(0.8, num_tasks + 0.2)
        axes.set_xlabel("task (four new classes each)", labelpad=8, color="#5a6675")
        axes.grid(axis="y", color=FAINT)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, colors="#5a6675")
        axes.spines[:].set_visible(False)
    figure.tight_layout(w_pad=2.5)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=80)
    plt.close(figure)


def rows() -> dict[str, list[RunRecord]]:
    """Read the committed records; return the runs of each method."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        records, _ = read_records([folder])
    return {method: chosen(records, method, wanted) for method, wanted in ROWS}


def main() -> None:
    """Read the records and write the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "overview.svg")
    given = parser.parse_args()
    draw(rows(), given.out)
    print(given.out)


if __name__ == "__main__":
    main()
