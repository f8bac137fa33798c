"""The figure of a learner's updates."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FIGURES)
    return runpy.run_path(str(FIGURES / "draw_ledger.py"))["draw"]


def updates(*verdicts: str) -> list[SimpleNamespace]:
    """What the figure reads of updates."""
    return [
        SimpleNamespace(
            task=number,
            outcome=SimpleNamespace(verdict=verdict, saturation=0.4, threshold=0.3),
            accuracy=SimpleNamespace(old_after=0.8, new_after=0.9),
            num_bytes=1_000_000 * number,
            num_backbones=(1, number),
        )
        for number, verdict in enumerate(verdicts, start=1)
    ]


def test_an_update_compressed_for_want_of_room_is_hollow_and_explained(draw: Any) -> None:
    svg = ET.fromstring(draw(updates("start", "grow", "compress", "compress (budget)"), 5.0))  # noqa: S314
    bars = [(bar.attrib["fill"], bar.get("stroke")) for bar in svg.findall(f"{NAMESPACE}rect")[1:]]
    hollow = ("#ffffff", "#0072B2")
    assert bars == [("#0072B2", None), ("#D55E00", None), ("#0072B2", None), hollow]
    words = [text.text for text in svg.findall(f"{NAMESPACE}text")]
    assert "budget: 4 backbones" in words
    assert "budget: compressed for want of room" in words
    assert "budget" not in draw(updates("start", "grow", "compress"), 5.0)
