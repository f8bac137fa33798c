"""The report page: small, without scripts, and safe against hostile names."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grace.runs.model import RunRecord
from grace.runs.record import read_record
from grace.studies.report import report_page, write_page, write_report
from grace.studies.table import Table
from support.synthetic_records import MakeRecord

EVIL = "<script>alert('x')</script>&\"|%"


@pytest.fixture
def records(make_record: MakeRecord) -> list[RunRecord]:
    names = [EVIL, *(f"class {index}" for index in range(1, 10))]
    bad = {"class_names": names, "experiment": "cifar10", "status": "failed", "error": EVIL}
    return [
        make_record("grace", 1, done=2, **bad),
        make_record("grace", 1, class_names=names),
        *(make_record("der", seed) for seed in (1, 2)),
        make_record("joint", 1, evaluated=[5]),
    ]


class Seen(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def seen(text: str) -> Seen:
    parser = Seen()
    parser.feed(text)
    return parser


def test_the_page_is_self_contained_small_and_escaped(
    records: list[RunRecord], tmp_path: Path
) -> None:
    path = write_report(records, tmp_path / "sub" / "report.html")
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    found = seen(text)
    assert "script" not in found.tags
    assert "default-src 'none'" in text
    assert "This run is failed after 2 of 5 tasks: &lt;script&gt;alert" in text
    assert text.count("<svg ") == 3  # Accuracy and backbones over tasks; the first run.
    for name, value in found.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href"):
            assert (value or "").startswith(("data:image/png", "#"))
    write_page(path, text)  # An earlier report is replaced, and nothing else.
    path.write_text("my thesis")
    for place, why in ((path, "is no report"), (tmp_path, "is a directory")):
        with pytest.raises(ValueError, match=why):
            write_page(place, text)
    assert path.read_text() == "my thesis"
    with pytest.raises(ValueError, match="no run"):
        write_report([], tmp_path / "new.html")


def test_hostile_texts_stay_texts(make_record: MakeRecord) -> None:
    odd = f"{EVIL} \x1b[2J\u202egnp ]]></style><script> {{{{ 7*7 }}}} </title> x\0"
    simple = Table("t", ("a",), [["b"]])
    plain = report_page([make_record("der", 9)], "title", ["line"], [simple], {})
    record = make_record("der", 1)
    raw = json.loads((record.directory / "run.json").read_text())
    raw |= {"experiment": odd, "description": odd, "notes": [odd], "commit": odd}
    raw["config"]["method"]["name"] = odd
    raw["hardware"]["cpu"] = odd
    (record.directory / "run.json").write_text(json.dumps(raw))
    record = read_record(record.directory)
    page = report_page([record], odd, [odd], [Table(odd, (odd,), [[odd]], [odd])], {})
    assert all(char.isprintable() or char == "\n" for char in page)
    assert set(seen(page).tags) <= {*seen(plain).tags, "strong"}
    assert "{{ 7*7 }}" in re.findall(r"<h1>(.*?)</h1>", page)[0]
    write_report([record], record.directory / "report.html")


def test_unfinished_runs_and_settings_of_other_versions_are_shown(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    path = make_record("grace", done=0, status="running").directory / "run.json"
    raw: dict[str, Any] = json.loads(path.read_text())
    raw["config"]["future"] = {"knob": 17}
    path.write_text(json.dumps(raw))
    page = write_report([read_record(path.parent)], tmp_path / "report.html").read_text()
    assert "running after 0 of 5 tasks" in page
    assert ">future.knob</td>" in page


def test_a_long_text_is_cut(make_record: MakeRecord, tmp_path: Path) -> None:
    record = make_record("der", 1)
    assert len(report_page([record], "x" * 10**6, [], [], {})) < 300_000
    # To lay out names of a megabyte in figures took minutes.
    long = replace(record, info=record.info.model_copy(update={"experiment": "y" * 10**4}))
    page = write_report([long], tmp_path / "report.html").read_text()
    assert "y" * 201 not in page.partition("<svg ")[2].partition("</svg>")[0]
