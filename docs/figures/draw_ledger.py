"""Draw a learner's ledger: accuracy on held-out images, saturation and size over its updates.

``python docs/figures/draw_ledger.py MODEL --out docs/figures/ledger.svg`` reads the documents of a
learner that ``grace learn`` wrote, from the version in use back to the first.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from draw_dynamics import BUDGET, Panel, bar_look

from grace.base.atomic import write_text
from grace.learner.document import UpdateRecord
from grace.learner.store import ModelStore

BLUE, GREEN, ORANGE, RED = "#0072B2", "#009E73", "#B98300", "#D55E00"


def draw(updates: Sequence[UpdateRecord], max_mb: float | None) -> str:
    """Return the figure of a learner's updates as SVG text."""
    size = {"width": "760", "height": "620", "viewBox": "0 0 760 620", "role": "img"}
    font = {"font-family": "system-ui, sans-serif", "xmlns": "http://www.w3.org/2000/svg"}
    svg = ET.Element("svg", size | font)
    title = "Accuracy, saturation and size over the updates of a learner"
    ET.SubElement(svg, "title").text = title
    ET.SubElement(svg, "rect", {"width": "760", "height": "620", "fill": "#ffffff", "rx": "8"})
    _accuracy(svg, updates)
    _saturation(svg, updates)
    _size(svg, updates, max_mb)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _accuracy(svg: ET.Element, updates: Sequence[UpdateRecord]) -> None:
    panel = Panel(svg, len(updates), top=48, height=170, low=0, high=100)
    for value in (0, 25, 50, 75, 100):
        panel.rule(value, str(value))
    found = [(update.task, update.accuracy) for update in updates]
    old = [(t, 100 * a.old_after) for t, a in found if a.old_after is not None]
    new = [(t, 100 * a.new_after) for t, a in found if a.new_after is not None]
    for points, colour, dash in ((old, ORANGE, "6 4"), (new, GREEN, "2 3")):
        panel.line(points, colour, dash)
        panel.dots(points, colour)
    keys = [("old classes", ORANGE, "6 4"), ("new classes", GREEN, "2 3")]
    panel.title("Accuracy on held-out images (%)", keys)


def _saturation(svg: ET.Element, updates: Sequence[UpdateRecord]) -> None:
    panel = Panel(svg, len(updates), top=272, height=150, low=0, high=1)
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        panel.rule(value, f"{value:g}")
    for name, colour, dash in (("threshold", RED, "6 4"), ("saturation", BLUE, "none")):
        values = [(update.task, getattr(update.outcome, name)) for update in updates]
        points = [(task, value) for task, value in values if value is not None]
        panel.line(points, colour, dash)
        panel.dots(points, colour)
    keys = [("saturation", BLUE, "none"), ("threshold", RED, "6 4")]
    panel.title("Saturation of the mergeable backbone", keys)


def _size(svg: ET.Element, updates: Sequence[UpdateRecord], max_mb: float | None) -> None:
    most = max([max_mb or 0, *(update.num_bytes / 1e6 for update in updates)])
    panel = Panel(svg, len(updates), top=476, height=96, low=0, high=1.15 * most)
    for value in (0.0, round(most / 2, 1), round(most, 1)):
        panel.rule(value, f"{value:g}")
    slot = panel.width / len(updates)
    for update in updates:
        verdict = update.outcome.verdict
        top, bottom = panel.y(update.num_bytes / 1e6), panel.y(0)
        box = {"x": f"{panel.x(update.task) - 0.2 * slot:.1f}", "y": f"{top:.1f}"}
        box |= {"width": f"{0.4 * slot:.1f}", "height": f"{bottom - top:.1f}"}
        look = bar_look(verdict) if verdict in ("grow", BUDGET) else {"fill": BLUE}
        ET.SubElement(svg, "rect", box | look)
        count = update.num_backbones[1]
        word = "budget" if verdict == BUDGET else verdict
        words = f"{word}: {count} backbone{'s' if count > 1 else ''}"
        panel.text(panel.x(update.task), bottom + 20, words, text_anchor="middle")
    keys = [("ceiling", "#7b8794", "3 3")] if max_mb else []
    if any(update.outcome.verdict == BUDGET for update in updates):
        keys.append(("budget: compressed for want of room", BLUE, "4 2"))
    if max_mb:
        panel.line([(1, max_mb), (len(updates), max_mb)], "#7b8794", "3 3")
    panel.title("Size of the version (MB)", keys)
    panel.text(panel.left + panel.width / 2, panel.y(0) + 40, "update", text_anchor="middle")


def main() -> None:
    """Read the learner, write the figure."""
    parser = argparse.ArgumentParser(description="Draw a learner's updates.")
    parser.add_argument("model", type=Path, help="directory of the learner")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/ledger.svg"))
    arguments = parser.parse_args()
    home = ModelStore.open(arguments.model)
    current = home.current()
    if current is None:
        raise SystemExit(f"{arguments.model} has learnt nothing yet")
    document = home.document(current)
    write_text(arguments.out, draw(document.history, document.settings.memory.max_mb))
    print(arguments.out)


if __name__ == "__main__":
    main()
