"""The page of a study: claims, tables and figures above the report of its runs."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from grace.base.words import element, escape, join
from grace.studies.figures import Figure, plot_text
from grace.studies.grid_claims import by_seed, grid_rows
from grace.studies.origins import REPLAYED, OriginName, by_origin, origin
from grace.studies.pareto import Point, front, mean_points, merged
from grace.studies.report import chart_card, page, runs_report, write_page
from grace.studies.sheet import Entry, Sheet
from grace.studies.study_claims import JudgedClaim, claims_sheet
from grace.studies.study_results import METRICS, Results


def write_study_page(
    results: Results,
    sheets: Sequence[tuple[str, Sheet]],
    claims: Sequence[JudgedClaim],
    drawn: Sequence[Path],
    path: Path,
    command: str,
) -> Path:
    """Write the page of a study to one HTML file; an earlier page in its place is replaced.

    Args:
        results: the study's numbers.
        sheets: tables by protocol.
        claims: judged claims.
        drawn: SVG files of figures, which the page contains.
        path: the file.
        command: command that made the study; empty: not shown.

    Returns:
        The path.
    """
    figures: dict[str, Figure] = {}
    study, records = results.made.study, results.made.records
    report, numbers = runs_report(records, figures)
    title = study.heading
    body = join(
        element(
            "header",
            element("h1", escape(title)),
            element("p", escape(command)) if command else "",
        ),
        _section("Claims", [_table(claims_sheet(list(claims)))] if claims else []),
        *(_section(name, [_table(sheet)]) for name, sheet in sheets),
        _section("Fronts", _fronts(results, numbers, figures)),
        _section("Figures", _pictures(drawn)),
        report,
    )
    return write_page(page(body, figures, title=title), path)


def _section(title: str, parts: Sequence[str]) -> str:
    return element("section", element("h2", escape(title)), *parts) if parts else ""


def _table(sheet: Sheet) -> str:
    titles = [
        element("th", escape(title), **({"class_": "text"} if place < sheet.num_names else {}))
        for place, title in enumerate(sheet.headings)
    ]
    head = element("thead", element("tr", *titles))
    rows = [
        element("tr", *(_cell(cell, place < sheet.num_names) for place, cell in enumerate(row)))
        for row in sheet.rows
    ]
    whole = element("table", head, element("tbody", *rows))
    notes = [element("p", escape(note), class_="note") for note in sheet.notes]
    return element("div", element("div", whole, class_="scroll"), *notes, class_="card")


def _cell(cell: Entry, is_name: bool) -> str:
    tags = {"best": "strong", "second": "u"}
    text = escape(cell.text)
    shown = element(tags[cell.mark], text) if cell.mark else text
    return element("td", shown, class_="text") if is_name else element("td", shown)


def _pictures(drawn: Sequence[Path]) -> list[str]:
    pictures = [_picture(file) for file in drawn]
    return [element("div", *pictures, class_="pictures")] if pictures else []


def _picture(file: Path) -> str:
    data = base64.b64encode(file.read_bytes()).decode()
    name = escape(file.stem)
    source = f"data:image/svg+xml;base64,{data}"
    return element("div", f'<img alt="{name}" src="{source}">', class_="card picture")


def _fronts(results: Results, numbers: Mapping[Path, int], figures: dict[str, Figure]) -> list[str]:
    """Return a chart for each protocol with a grid; a click on a point opens its first run."""
    cards = []
    for place, protocol in enumerate(results.protocols):
        figure = _front(results, protocol, numbers)
        if figure is not None:
            caption = "Means over seeds. A click on a point opens its run below."
            if origin(results, grid_rows(results, protocol), protocol).replayed:
                caption += f" {REPLAYED.capitalize()}."
            cards.append(chart_card(protocol, caption, f"front-{place}", figure, figures))
    return cards


def _front(results: Results, protocol: str, numbers: Mapping[Path, int]) -> Figure | None:
    points = merged(mean_points(by_seed(results, protocol, "average")))
    if not points:
        return None

    def number(row: str) -> int | None:
        found = (results.found(row, protocol, seed) for seed in results.seeds)
        return next((numbers[one.record.directory] for one in found if one), None)

    axis = METRICS["average"].heading

    def name(point: Point) -> str:
        return origin(results, point.labels, protocol).marked(", ".join(point.labels))

    symbols: Mapping[OriginName, str] = {
        "trained": "circle",
        "partly replayed": "circle-open-dot",
        "replayed": "circle-open",
    }
    clouds = [
        _scatter(kept, "markers", title)
        | {
            "marker": {"symbol": symbols[title], "size": 9},
            "text": [plot_text(name(point)) for point in kept],
            "customdata": [number(point.labels[0]) for point in kept],
            "hovertemplate": "%{text}: %{x:.2f} backbones, %{y:.2f} %<extra></extra>",
        }
        for title, kept in by_origin(results, points, protocol).items()
        if kept
    ]
    line = _scatter(front(points), "lines+markers", "front") | {  # It may be one point.
        "line": {"shape": "hv"},
        "marker": {"symbol": "circle-open", "size": 14},
        "hoverinfo": "skip",
    }
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "backbones"}},
        "yaxis": {"title": {"text": axis}},
    }
    return {"data": [line, *clouds], "layout": layout}


def _scatter(points: Sequence[Point], mode: str, name: str) -> Figure:
    x, y = [point.x for point in points], [point.y for point in points]
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y}
