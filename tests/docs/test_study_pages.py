"""The script that brings the results of studies into the pages."""

import runpy
import tarfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "results" / "study_pages.py"


@pytest.fixture(scope="module")
def script() -> Any:
    return runpy.run_path(str(SCRIPT))


def test_text_between_markers_is_replaced_and_the_rest_stays(script: Any) -> None:
    page = "before\n<!-- study x -->\nold\n<!-- end study x -->\nafter\n"
    expected = "before\n<!-- study x -->\n\nnew\n\n<!-- end study x -->\nafter\n"
    assert script["between"](page, "study x", "new") == expected
    assert script["between"](expected, "study x", "new") == expected


def test_the_readme_gets_each_claim_once_and_the_first_table(script: Any, tmp_path: Path) -> None:
    study = tmp_path / "benchmark"
    study.mkdir()
    (study / "claims.md").write_text(
        "| Claim | Protocol | Compared | Paper | Ours | Runs | Verdict |\n"
        "| --- | --- | --- | ---: | ---: | ---: | ---: |\n"
        "| M1: a \\< b |  |  |  |  |  | holds |\n"
        "| M1 | b0i4 | last: b − a | +1 | +2 ± 1 | 3 | holds |\n"
        "| M2: elsewhere |  |  |  |  |  | not measured |\n"
    )
    (study / "table.md").write_text("### one\n\n| a \\< b |\n\n### two\n\n| c |\n")
    found = [*script["claims"](study)]
    assert found == ["| a &lt; b | [benchmark](docs/results/benchmark.md) | holds |"]
    assert script["first_table"](study).strip() == "| a &lt; b |"


def test_equal_records_give_equal_archives(script: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "1"
    run.mkdir(parents=True)
    for name in ("tasks.jsonl", "run.json", "report.html"):
        (run / name).write_text(name)
    first, second = tmp_path / "first.tar.xz", tmp_path / "second.tar.xz"
    script["pack"](run.parent, first)
    (run / "run.json").touch()
    script["pack"](run.parent, second)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert archive.getnames() == ["runs/1/run.json", "runs/1/tasks.jsonl"]
