import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace.runs import RunRecord, read_record
from grace.settings.registry import METHODS
from grace.studies import figures
from grace.studies.groups import group_records
from grace.studies.report import render_report, write_report
from support.synthetic_records import MakeRecord

EVIL = "<script>alert('x')</script>&\"|%"
BROWSER = next(
    (path for name in ("chromium", "google-chrome", "chromium-browser")
     if (path := shutil.which(name))),
    None,
)  # fmt: skip


@pytest.fixture
def records(make_record: MakeRecord) -> list[RunRecord]:
    names = [EVIL, *(f"class {index}" for index in range(1, 10))]
    return [
        make_record("grace", 1, class_names=names),
        make_record("der", 1),
        make_record("der", 2),
        make_record("joint", 1, evaluated=[5]),
        make_record("grace", 3, experiment="cifar10", done=2, status="failed", error=EVIL),
    ]


def test_page_is_self_contained_and_escaped(records: list[RunRecord], tmp_path: Path) -> None:
    path = write_report(records, tmp_path / "sub" / "report.html")
    text = path.read_text(encoding="utf-8")
    assert text.count("plotly.js v") == 1
    head, _, rest = text.partition('<script type="application/json" id="figures">')
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in head
    assert not re.search(r'(src|href)="(?!data:,)', head)
    assert "default-src 'none'" in head
    figures_text = rest.partition("</script>")[0]
    assert "<" not in figures_text
    drawn = json.loads(figures_text)
    assert set(re.findall(r'data-figure="([^"]+)"', head)) == set(drawn)


def test_an_earlier_report_is_replaced_and_nothing_else(
    records: list[RunRecord], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    write_report(records[:1], path)
    write_report(records[1:2], path)
    path.write_text("my thesis")
    with pytest.raises(ValueError, match="is no report"):
        write_report(records, path)
    assert path.read_text() == "my thesis"
    with pytest.raises(ValueError, match="is a directory"):
        write_report(records, tmp_path)
    with pytest.raises(ValueError, match="no run"):
        write_report([], tmp_path / "new.html")


def test_runs_with_nothing_finished_still_make_a_page(make_record: MakeRecord) -> None:
    record = make_record("grace", done=0, status="running")
    text = render_report([read_record(record.directory)])
    assert "running after 0 of 5 tasks" in text


def test_settings_of_another_version_are_shown_as_they_are(make_record: MakeRecord) -> None:
    record = make_record("grace")
    path = record.directory / "run.json"
    raw = json.loads(path.read_text())
    raw["config"]["future"] = {"knob": 17}
    path.write_text(json.dumps(raw))
    assert "<code>future.knob</code>" in render_report([read_record(record.directory)])


def test_curves_are_means_with_a_band_of_one_deviation(make_record: MakeRecord) -> None:
    records = [make_record("der", seed) for seed in (1, 2)]
    groups = group_records(records)
    band, line = figures.accuracy_figure(groups, figures.styles(groups))["data"]
    first, second = (record.tasks[0].classifiers["linear"].all for record in records)
    assert line["y"][0] == pytest.approx((first + second) / 2)
    # Two values deviate by |a − b| / √2.
    deviation = abs(first - second) / 2**0.5
    assert band["y"][0] - line["y"][0] == pytest.approx(deviation)
    assert line["y"][0] - band["y"][-1] == pytest.approx(deviation)
    assert line["x"] == [1, 2, 3, 4, 5]


def test_every_method_has_a_look_of_its_own_in_every_figure(make_record: MakeRecord) -> None:
    groups = group_records([make_record(method) for method in METHODS])
    looks = dict(zip((group.method for group in groups), figures.styles(groups), strict=True))
    pairs = {method: (look.colour, look.dash) for method, look in looks.items()}
    assert pairs.keys() == METHODS.keys()
    assert len({colour for colour, _ in pairs.values()}) == len(METHODS)
    # The same among fewer and in another order.
    fewer = [groups[number] for number in (7, 2, 0)]
    assert [(look.colour, look.dash) for look in figures.styles(fewer)] == [
        pairs[group.method] for group in fewer
    ]
    own = {look.key: pairs[method] for method, look in looks.items()}
    for draw in (figures.accuracy_figure, figures.parameters_figure, figures.expansion_figure):
        lines = draw(groups, list(looks.values()))["data"]
        assert {(t["meta"], t["line"]["color"], t["line"]["dash"]) for t in lines} == {
            (key, colour, dash) for key, (colour, dash) in own.items()
        }


def test_methods_keep_the_look_of_earlier_reports(make_record: MakeRecord) -> None:
    looks = figures.styles(group_records([make_record(name) for name in ("grace", "wa", "joint")]))
    assert [(look.colour, look.dash) for look in looks] == [
        ("#0072B2", "solid"),
        ("#A65628", "dot"),
        ("#000000", "solid"),
    ]


def test_variants_and_strangers_look_otherwise(make_record: MakeRecord) -> None:
    (group,) = group_records([make_record("grace")])
    other = replace(group, method="grown")
    several = [group, replace(group, variant="threshold=0"), *[replace(other, method=f"new {n}")
               for n in range(6)]]  # fmt: skip
    looks = figures.styles(several)
    assert len({(look.colour, look.dash) for look in looks}) == 8
    assert [look.colour for look in looks[:2]] == [looks[0].colour] * 2
    assert looks[0].dash == "solid"


def seen(colour: str, sight: str) -> np.ndarray[Any, Any]:
    """CIELAB coordinates of a colour as red- or green-blind eyes see it.

    Machado, Oliveira, Fernandes (2009), table 1, severity 1; sRGB and CIELAB by IEC 61966-2-1.
    """
    matrices = {
        "normal": np.eye(3),
        "red-blind": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "green-blind": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    }
    srgb = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(matrices[sight]) @ linear, 0, 1)
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    x, y, z = np.array(to_xyz) @ linear / np.array([0.95047, 1, 1.08883])
    roots = [
        np.cbrt(v) if v > (6 / 29) ** 3 else v / (3 * (6 / 29) ** 2) + 4 / 29 for v in (x, y, z)
    ]
    return np.array([116 * roots[1] - 16, 500 * (roots[0] - roots[1]), 200 * (roots[1] - roots[2])])


@pytest.mark.parametrize("sight", ["normal", "red-blind", "green-blind"])
def test_methods_of_one_dash_are_told_apart_by_colour(make_record: MakeRecord, sight: str) -> None:
    # L* of black and white by definition: 0 and 100.
    assert seen("#FFFFFF", sight) == pytest.approx([100, 0, 0], abs=0.05)
    assert seen("#000000", sight) == pytest.approx([0, 0, 0], abs=1e-9)
    (group,) = group_records([make_record("grace")])
    # The registered methods first; then those that are yet to come.
    methods = [*METHODS, *(f"new {number}" for number in range(27 - len(METHODS)))]
    looks = figures.styles([replace(group, method=method) for method in methods])
    assert len({(look.colour, look.dash) for look in looks}) == len(looks) == 27
    for one, other in combinations(looks, 2):
        distance = float(np.linalg.norm(seen(one.colour, sight) - seen(other.colour, sight)))
        # 2.3 is just noticeable side by side; thin lines far apart need ten times that.
        assert distance > (28 if one.dash == other.dash else 15), (one, other)


def test_verdicts_and_threshold_are_drawn(make_record: MakeRecord) -> None:
    record = make_record("grace", 1)
    groups = group_records([record])
    looks = figures.styles(groups)
    figure = figures.saturation_figure(groups, looks)
    threshold, saturation = figure["data"]
    assert threshold["y"] == [task.threshold for task in record.tasks]
    assert saturation["y"] == [task.saturation for task in record.tasks]
    symbols = {"start": "square", "grow": "triangle-up", "compress": "triangle-down"}
    assert saturation["marker"]["symbol"] == [symbols[str(task.verdict)] for task in record.tasks]
    (steps,) = figures.expansion_figure(groups, looks)["data"]
    assert [round(value) for value in steps["y"]] == [task.backbones for task in record.tasks]
    silent = group_records([make_record("der")])
    assert figures.saturation_figure(silent, figures.styles(silent)) is None


def test_each_repetition_shows_its_own_saturation(make_record: MakeRecord) -> None:
    record = make_record("grace", 1)
    repetition = replace(record, directory=record.directory.with_name("again"))
    assert render_report([record]).count("Saturation of this run") == 0
    assert render_report([record, repetition]).count("Saturation of this run") == 2


def test_a_verdict_under_the_ceiling_is_drawn_as_what_it_is(make_record: MakeRecord) -> None:
    verdicts = ["start", "grow", "compress", "compress (budget)", "refresh"]
    record = make_record("grace", verdicts=verdicts)
    groups = group_records([record])
    looks = figures.styles(groups)
    saturation = figures.run_saturation_figure(groups[0], record, looks[0])
    assert saturation is not None
    for trace in (saturation["data"][1], figures.expansion_figure(groups, looks)["data"][0]):
        marks = ["square", "triangle-up", "triangle-down", "triangle-down-open", "circle"]
        assert trace["marker"]["symbol"] == marks
        assert trace["marker"]["size"] == [7, 13, 13, 13, 7]
        assert trace["marker"]["line"]["width"] == [1, 1, 1, 2, 1]
        assert trace["text"][3].endswith("compress (budget)")
    told = "▽ compress, for want of room to grow (budget)"
    page = render_report([record])
    assert page.count(told) == 2  # backbones; saturation
    assert '<td class="text verdict">compress (budget)</td>' in page
    assert told not in render_report([make_record("grace", 2, verdicts=["start"] + ["grow"] * 4)])


def test_task_aware_accuracies_are_drawn_beside_the_others(make_record: MakeRecord) -> None:
    records = [make_record("der", seed, task_sizes=(3, 1, 2)) for seed in (1, 2)]
    groups = group_records(records)
    curve = figures.task_aware_figure(groups, figures.styles(groups))
    assert curve["layout"]["yaxis"]["title"]["text"] == "task-aware accuracy (%)"
    firsts = [record.tasks[1].classifiers["linear"] for record in records]
    told = [first.task_aware.all for first in firsts if first.task_aware]
    assert curve["data"][1]["y"][1] == pytest.approx(sum(told) / 2)
    assert sum(told) > sum(first.all for first in firsts)
    matrix = figures.task_aware_matrix_figure(records[0])
    assert matrix["data"][0]["z"] == records[0].task_aware_matrix
    assert [row[1] for row in records[0].task_aware_matrix[1:]] == [100.0, 100.0]
    page = render_report(records)
    lone = "ask 2 has one class, so that task-aware (TA) accuracy there is 100 % by construction"
    assert (page.count(f"T{lone}"), page.count(f"digits: t{lone}")) == (2, 1)
    assert "<th>Task-aware (%)</th>" in page.replace(' class=""', "")


def test_records_from_before_it_was_measured_show_none_of_it(make_record: MakeRecord) -> None:
    record = make_record("der", task_sizes=(2, 1), task_aware=False)
    groups = group_records([record])
    assert figures.task_aware_figure(groups, figures.styles(groups)) is None
    assert figures.task_aware_matrix_figure(record) is None
    assert "ask-aware" not in render_report([record]).partition("<script")[0]


def test_confusion_is_the_share_of_each_true_class(make_record: MakeRecord) -> None:
    record = make_record("replay", 1)
    counts = record.tasks[-1].confusion
    figure = figures.confusion_figure(record)
    assert counts is not None
    shares = figure["data"][0]["z"]
    assert all(sum(row) == pytest.approx(100) for row in shares)
    assert shares[3][3] == pytest.approx(100 * counts[3][3] / 20)
    assert figures.confusion_figure(make_record("joint", 1, done=0)) is None


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome on this machine")
def test_page_draws_offline_in_a_browser(records: list[RunRecord], tmp_path: Path) -> None:
    path = write_report(records, tmp_path / "report.html")
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1200,6000",
            "--virtual-time-budget=10000", "--enable-logging=stderr", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    problems = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert problems == []
    charts = re.split(r'class="chart', done.stdout)[1:]
    shown = [chart for chart in charts if 'class="main-svg"' in chart]
    # Two experiments of five charts and the first run's three; the other runs are hidden.
    assert len(shown) == 5 + 5 + 3
    traces = re.findall(r'class="trace scatter', done.stdout)
    heatmaps = re.findall(r'class="hm"', done.stdout)
    assert len(traces) >= 12
    assert len(heatmaps) == 3
