import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from grace.record import RunRecord, read_record
from grace.studies import figures
from grace.studies.groups import group_records
from grace.studies.report import render_report, write_report
from synthetic_records import MakeRecord

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


def test_verdicts_and_threshold_are_drawn(make_record: MakeRecord) -> None:
    record = make_record("grace", 1)
    groups = group_records([record])
    looks = figures.styles(groups)
    figure = figures.saturation_figure(groups, looks)
    assert figure is not None
    threshold, saturation = figure["data"]
    assert threshold["y"] == [task.threshold for task in record.tasks]
    assert saturation["y"] == [task.saturation for task in record.tasks]
    symbols = {"base": "square", "grow": "triangle-up", "compress": "triangle-down"}
    assert saturation["marker"]["symbol"] == [symbols[str(task.verdict)] for task in record.tasks]
    (steps,) = figures.expansion_figure(groups, looks)["data"]
    assert [round(value) for value in steps["y"]] == [task.backbones for task in record.tasks]
    silent = group_records([make_record("der")])
    assert figures.saturation_figure(silent, figures.styles(silent)) is None


def test_confusion_is_the_share_of_each_true_class(make_record: MakeRecord) -> None:
    record = make_record("replay", 1)
    counts = record.tasks[-1].confusion
    figure = figures.confusion_figure(record)
    assert figure is not None
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
    # Two experiments of three or four charts and the first run's two; the other runs are hidden.
    assert len(shown) == 4 + 4 + 2
    traces = re.findall(r'class="trace scatter', done.stdout)
    heatmaps = re.findall(r'class="hm"', done.stdout)
    assert len(traces) >= 12
    assert len(heatmaps) == 2
