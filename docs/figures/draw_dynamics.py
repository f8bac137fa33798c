"""Draw one run's accuracy, saturation against threshold, and backbones over tasks as SVG.

``python docs/figures/draw_dynamics.py RUN --out docs/figures/dynamics.svg`` reads a run directory
that ``grace run`` wrote. The SVG is written by hand: it needs nothing but the record.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final
from xml.etree import ElementTree as ET

from grace.base.atomic import write_text
from grace.runs import RunRecord, TaskRecord, read_record

Points = Sequence[tuple[int, float]]
BUDGET = "compress (budget)"


@final
@dataclass(frozen=True)
class Panel:
    """A plot area in pixels with its range of values; tasks 1..T run from left to right."""

    svg: ET.Element
    num_tasks: int
    top: float
    height: float
    low: float
    high: float
    left: float = 62.0
    width: float = 670.0

    def x(self, task: float) -> float:
        """Pixel of a task."""
        return self.left + self.width * (task - 0.5) / self.num_tasks

    def y(self, value: float) -> float:
        """Pixel of a value."""
        return self.top + self.height * (self.high - value) / (self.high - self.low)

    def text(self, x: float, y: float, words: str, colour: str = "#5a6675", **more: str) -> None:
        """Write words."""
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "fill": colour, "font-size": "13"}
        ET.SubElement(self.svg, "text", place | _dashed(more)).text = words

    def rule(self, value: float, label: str) -> None:
        """Draw a horizontal line with its value at the left."""
        ends = {"x1": f"{self.left:.1f}", "x2": f"{self.left + self.width:.1f}"}
        height = {"y1": f"{self.y(value):.1f}", "y2": f"{self.y(value):.1f}"}
        ET.SubElement(self.svg, "line", ends | height | {"stroke": "#dfe4ea"})
        self.text(self.left - 8, self.y(value) + 4.5, label, text_anchor="end")

    def line(self, points: Points, colour: str, dash: str = "none") -> None:
        """Join points; single points are seen by their marks."""
        path = " ".join(f"{self.x(task):.1f},{self.y(value):.1f}" for task, value in points)
        look = {"points": path, "fill": "none", "stroke": colour, "stroke-dasharray": dash}
        ET.SubElement(self.svg, "polyline", look | {"stroke-width": "2.2"})

    def dots(self, points: Points, colour: str) -> None:
        """Mark points."""
        for task, value in points:
            place = {"cx": f"{self.x(task):.1f}", "cy": f"{self.y(value):.1f}", "r": "3.6"}
            ET.SubElement(self.svg, "circle", place | {"fill": colour})

    def title(self, words: str, keys: Sequence[tuple[str, str, str]]) -> None:
        """Write the panel's title and, right of it, what its lines mean (word, colour, dash)."""
        self.text(self.left, self.top - 14, words, "#1b2430", font_weight="600")
        at = self.left + 9 * len(words) + 14
        for word, colour, dash in keys:
            look = {"stroke": colour, "stroke-width": "2.2", "stroke-dasharray": dash}
            y = f"{self.top - 18:.1f}"
            ends = {"x1": f"{at:.1f}", "x2": f"{at + 24:.1f}", "y1": y, "y2": y}
            ET.SubElement(self.svg, "line", ends | look)
            self.text(at + 30, self.top - 14, word)
            at += 30 + 7.5 * len(word) + 22


def _dashed(attributes: dict[str, str]) -> dict[str, str]:
    return {key.replace("_", "-"): value for key, value in attributes.items()}


def draw(record: RunRecord) -> str:
    """Return the figure of a run as SVG text.

    Raises:
        ValueError: the run has no finished task.
    """
    tasks = record.tasks
    if not tasks:
        raise ValueError(f"{record.directory} has no finished task: nothing can be drawn")
    size = {"width": "760", "height": "620", "viewBox": "0 0 760 620", "role": "img"}
    font = {"font-family": "system-ui, sans-serif", "xmlns": "http://www.w3.org/2000/svg"}
    svg = ET.Element("svg", size | font)
    name = f"{record.info.experiment}, {record.method}, seed {record.seed}"
    ET.SubElement(svg, "title").text = f"Accuracy, saturation and backbones over tasks: {name}"
    ET.SubElement(svg, "rect", {"width": "760", "height": "620", "fill": "#ffffff", "rx": "8"})
    _accuracy(svg, tasks)
    _saturation(svg, tasks)
    _backbones(svg, tasks)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _accuracy(svg: ET.Element, tasks: Sequence[TaskRecord]) -> None:
    panel = Panel(svg, len(tasks), top=48, height=170, low=0, high=100)
    for value in (0, 25, 50, 75, 100):
        panel.rule(value, str(value))
    found = [(task.task, task.accuracy) for task in tasks if task.accuracy]
    lines: list[tuple[str, str, str, Points]] = [
        ("old classes", "#B98300", "6 4", [(t, a.old) for t, a in found if a.old is not None]),
        ("new classes", "#009E73", "2 3", [(t, a.new) for t, a in found if a.new is not None]),
        ("all classes seen", "#0072B2", "none", [(t, a.all) for t, a in found]),
    ]
    for _, colour, dash, points in lines:
        panel.line(points, colour, dash)
        panel.dots(points, colour)
    panel.title("Accuracy (%)", [(word, colour, dash) for word, colour, dash, _ in lines[::-1]])


def _saturation(svg: ET.Element, tasks: Sequence[TaskRecord]) -> None:
    panel = Panel(svg, len(tasks), top=272, height=150, low=0, high=1)
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        panel.rule(value, f"{value:g}")
    saturation = [(t.task, t.saturation) for t in tasks if t.saturation is not None]
    threshold = [(t.task, t.threshold) for t in tasks if t.threshold is not None]
    panel.line(threshold, "#D55E00", "6 4")
    panel.dots(threshold, "#D55E00")
    panel.line(saturation, "#0072B2")
    panel.dots(saturation, "#0072B2")
    keys = [("saturation", "#0072B2", "none"), ("threshold", "#D55E00", "6 4")]
    panel.title("Saturation of the mergeable backbone", keys)


def _backbones(svg: ET.Element, tasks: Sequence[TaskRecord]) -> None:
    most = max(task.backbones for task in tasks)
    panel = Panel(svg, len(tasks), top=476, height=96, low=0, high=most)
    step = max(1, -(-most // 5))
    for value in range(0, most + 1, step):
        panel.rule(value, str(value))
    every = max(1, -(-len(tasks) // 13))
    slot = panel.width / len(tasks)
    for task in tasks:
        top, bottom = panel.y(task.backbones), panel.y(0)
        left = panel.x(task.task) - 0.3 * slot
        box = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{0.6 * slot:.1f}"}
        ET.SubElement(svg, "rect", box | {"height": f"{bottom - top:.1f}"} | bar_look(task.verdict))
        if (task.task - 1) % every == 0:
            verdict = "budget" if task.verdict == BUDGET else task.verdict or ""
            word = f"{task.task} {verdict}" if every == 1 and slot > 78 else task.task
            panel.text(panel.x(task.task), bottom + 20, str(word).strip(), text_anchor="middle")
    keys = [("grow", "#D55E00", "none"), ("compress", "#0072B2", "none")]
    if any(task.verdict == BUDGET for task in tasks):
        keys.append((BUDGET, "#0072B2", "4 2"))
    panel.title("Backbones kept", [*keys, ("first task", "#7b8794", "none")])
    panel.text(panel.left + panel.width / 2, panel.y(0) + 40, "task", text_anchor="middle")


def bar_look(verdict: str | None) -> dict[str, str]:
    """Fill a bar by its verdict; one that was compressed for want of room is hollow."""
    if verdict == BUDGET:
        line = {"stroke": "#0072B2", "stroke-width": "2", "stroke-dasharray": "4 2"}
        return {"fill": "#ffffff", **line}
    return {"fill": {"grow": "#D55E00", "compress": "#0072B2"}.get(verdict or "", "#7b8794")}


def main() -> None:
    """Read the run, write the figure."""
    parser = argparse.ArgumentParser(description="Draw one run over its tasks.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/dynamics.svg"))
    arguments = parser.parse_args()
    write_text(arguments.out, draw(read_record(arguments.run)))
    print(arguments.out)


if __name__ == "__main__":
    main()
