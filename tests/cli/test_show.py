"""One result is a page for people and JSON for programs; neither lets a stranger's text act."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grace.base.words import JOINERS
from grace.cli.show import in_words, show


@dataclass(frozen=True)
class Of:
    old: float | None = 0.5
    new: float | None = None


FACTS = {
    "model": Path("models/x"),
    "none": None,
    "accuracy": Of(),
    "bytes": {"before": 1000, "after": 20_000},
    "new_classes": ["cat", "dog"],
    "classes": [
        {"name": "cat", "index": 0, "after": 0.25},
        {"name": "猫", "index": 1, "after": 1.0},
    ],
}


def test_a_page_has_a_line_for_each_fact_and_a_table_for_each_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(FACTS, title="Learnt", hide={"classes.index"}, after=["next  grace predict"])
    assert capsys.readouterr().out == (
        "Learnt\n\n"
        "model         models/x\n"
        "accuracy old  50.0 %\n"
        "bytes         1.0 kB → 20.0 kB\n"
        "new classes   cat, dog\n\n"
        "classes\n"
        "name    after\n"
        "cat    25.0 %\n"
        "猫    100.0 %\n\n"
        "next  grace predict\n"
    )


def test_json_holds_every_fact_unrounded(capsys: pytest.CaptureFixture[str]) -> None:
    show(FACTS, as_json=True, title="Learnt", hide={"model"}, after=["x"])
    expected = {**FACTS, "model": "models/x", "accuracy": {"old": 0.5, "new": None}}
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize(
    ("value", "name", "shown"),
    [
        (None, "x", "–"),
        (True, "in_use", "yes"),
        (1234, "num_bytes", "1.2 kB"),
        (185.0, "seconds", "3:05 min"),
        (1.25, "compression_cost_points", "1.2 points"),
        (0.5, "classes.after", "50.0 %"),
        (3, "classes.after", "3"),
        (0.12345, "saturation", "0.1235"),
        ([0.68, 0.91], "after_interval", "68 – 91 %"),
        (list(range(14)), "versions", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"),
    ],
)
def test_units_follow_from_names(value: Any, name: str, shown: str) -> None:
    assert in_words(value, name) == shown


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec=None), max_size=30))
def test_no_text_of_a_stranger_acts_on_the_terminal(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show({"name": text, "list": [{text or "x": text}]}, title=text)
    show({text: text}, as_json=True)
    acting = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    printed = {*capsys.readouterr().out} - {"\n", *JOINERS}
    assert [c for c in printed if category(c) in acting] == []
