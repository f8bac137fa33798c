"""Figures: the same bytes, texts as they are, and the numbers at their places."""

import re

import matplotlib as mpl
import pytest

from grace.studies import figures
from grace.studies.figures import study_figures
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made

ODD = "$x_2$ <b>&amp;\x1b[31m\u202egnp"
NUMBERS = {"grace": [(60, 70, 3), (62, 71, 2)], "_der": [(59, 69, 5), (61.5, 70.2, 5)]}


def test_every_figure_of_a_study(make_record: MakeRecord) -> None:
    grid = {"method": "grace", "grid": {"method.threshold": [0.4, 0.5]}}
    rows = {"grace": {"method": "grace", "label": ODD}, "_der": {"method": "der"}, "pairs": grid}
    names = ["accuracy", "backbones", "protocols", "bars", "front", "measures"]
    numbers = NUMBERS | {"0.4": [(60, 70, 3), (61, 71, 3)], "0.5": [(50, 60, 4), (51, 61, 4)]}
    results = made(make_record, numbers, [("0.5", 1), ("0.5", 2)], rows=rows, figures=names)
    drawn = study_figures(results)
    assert set(drawn) == set(names) - {"measures"}  # No run has measures.
    assert study_figures(results) == drawn
    for text in drawn.values():
        assert text.startswith("<svg")
        assert all(char.isprintable() or char == "\n" for char in text)
        assert len(text) < 60_000
    for name in ("accuracy", "bars", "protocols"):
        assert "$x_2$ &lt;b&gt;&amp;amp;\\x1b[31m\\u202egnp" in drawn[name]
        assert "_der</text>" in drawn[name]
    # One point is on the front: it has fewer backbones and a higher accuracy.
    assert "1: 0.4</text>" in drawn["front"]


def test_a_users_own_settings_of_matplotlib_change_nothing(make_record: MakeRecord) -> None:
    results = made(make_record, NUMBERS, rows={n: {"method": n.strip("_")} for n in NUMBERS})
    plain = study_figures(results)
    with mpl.rc_context({"svg.fonttype": "path", "lines.linewidth": 9, "axes.grid": False}):
        assert study_figures(results) == plain


def test_curves_are_means_with_a_band_of_one_deviation(make_record: MakeRecord) -> None:
    # Accuracies of two tasks: 10 and 20, 14 and 26.
    svg = study_figures(made(make_record, {"der": [(20, 15, 1), (26, 20, 1)]}))["accuracy"]
    # Means 12 and 23, deviations 4/√2 and 6/√2: the band's heights have the same ratio.
    band = re.search(r'd="(M[^"]*)z', svg[svg.index("FillBetween") :])
    assert band is not None
    heights: dict[str, list[float]] = {}
    for x, y in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", band[1]):
        heights.setdefault(x, []).append(float(y))
    first, last = (max(own) - min(own) for own in heights.values())
    assert last / first == pytest.approx(6 / 4, rel=0.02)


def test_more_than_twelve_lines_are_left_out(make_record: MakeRecord) -> None:
    rows = {f"line-{n}": {"method": "der", "set": [f"memory.size={n}"]} for n in range(14)}
    svg = study_figures(made(make_record, {row: [(1, 1, 1)] for row in rows}, rows=rows))
    assert "b0i10: 12 of 14 lines" in svg["backbones"]
    assert "line-11<" in svg["backbones"]
    assert "line-12<" not in svg["backbones"]


def test_a_run_has_its_matrix_its_confusion_and_its_saturation(make_record: MakeRecord) -> None:
    record = make_record("grace", verdicts=["start", "grow", "compress", "grow", "compress"])
    svg = figures.drawn(list(figures.matrices(record)))
    assert svg.count("data:image/png;base64") == 4  # And their colour bars.
    svg = figures.drawn([figures.saturation(record)])
    assert svg.count("#555555") == 2  # The expansions.
    assert "threshold</text>" in svg
