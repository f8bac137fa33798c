"""Why an update ended as it did, in words."""

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from grace.cli.progress import RichProgress
from grace.cli.why import why
from grace.learner.document import UpdateRecord
from grace.methods.outcome import Outcome
from grace.settings.experiment import ExperimentSettings, MemorySettings


def told(*, task: int = 3, backbones: int = 1, **outcome: Any) -> str:
    settings = ExperimentSettings(memory=MemorySettings(size=None, max_mb=2.5))
    update = UpdateRecord(
        task=task,
        new_class_names=("ant",),
        outcome=Outcome(**outcome),
        num_backbones=(backbones, backbones),
    )
    return why(update, settings)


@pytest.mark.parametrize(
    ("verdict", "saturation", "backbones", "sentence"),
    [
        (
            "compress",
            0.414,
            1,
            "compressed: the backbone uses 41 % of its feature space, below the threshold of 60 %",
        ),
        (
            "grow",
            0.72,
            2,
            "grew: the newest of 2 backbones uses 72 % of its feature space, not below the "
            "threshold of 60 %",
        ),
        # Both would be 60 %: as many digits as tell them apart.
        (
            "compress",
            0.5996,
            1,
            "compressed: the backbone uses 59.96 % of its feature space, below the threshold of "
            "60.00 %",
        ),
        (
            "compress (budget)",
            0.72,
            1,
            "compressed for the budget: the backbone uses 72 % of its feature space, not below the "
            "threshold of 60 %, but one more backbone would not fit into 2.5 MB",
        ),
    ],
)
def test_a_saturation_that_decided(
    verdict: str, saturation: float, backbones: int, sentence: str
) -> None:
    outcome = {"verdict": verdict, "saturation": saturation, "threshold": 0.6}
    assert told(backbones=backbones, **outcome) == sentence


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        ("start", "trained afresh: the method says so"),
        ("grow", "grew: the method says so"),
        ("compress", "compressed: the method says so"),
        (
            "compress (budget)",
            "compressed for the budget: the method says so, but one more backbone would not fit "
            "into 2.5 MB",
        ),
        ("refresh", "refreshed: the method says so"),
        ("train", "trained further: the method says so"),
        ("skip", "nothing was trained: the method says so"),
    ],
)
def test_the_methods_own_reason_stands(verdict: str, sentence: str) -> None:
    outcome = {"verdict": verdict, "saturation": 0.1, "threshold": 0.6}
    assert told(reason="the method says so", **outcome) == sentence


def test_a_reason_cannot_move_the_cursor() -> None:
    # A saved learner may be a stranger's; U+001B starts a terminal's commands.
    assert told(verdict="grow", reason="so \x1b[2J\nit is") == "grew: so \\x1b[2J\\nit is"


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        ({"verdict": "grow"}, "grew: every update adds a backbone"),
        ({"verdict": "compress"}, "compressed: every update makes one backbone of two"),
        (
            {"verdict": "compress (budget)"},
            "compressed for the budget: one more backbone would not fit into 2.5 MB",
        ),
        ({"verdict": "train"}, "trained further: the number of backbones stays"),
        (
            {"verdict": "start", "task": 1},
            "trained afresh: the first update makes the first backbone",
        ),
        ({"verdict": "start"}, "trained afresh: a new network learns from all images"),
        ({"verdict": "skip"}, "nothing was trained: a later update trains"),
        (
            {"verdict": "refresh", "threshold": 0.6},
            "refreshed: no class is new, so the newest backbone was trained further",
        ),
    ],
)
def test_without_a_reason_the_verdict_has_to_do(outcome: Mapping[str, Any], sentence: str) -> None:
    assert told(**outcome) == sentence


def test_bars_name_the_update() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, legacy_windows=False)
    with RichProgress(console) as progress:
        progress.waiting("reading")
        progress.update_started(["ant"])
        progress.phase_started("grow", 2, 30)
        progress.epoch_finished("grow", 2, 2, {"classification": 0.5}, 0.1)
        progress.phase_finished("grow", 1.5)
    assert "update  grow" in screen.getvalue()
    assert "epoch 2/2" in screen.getvalue()
    assert "tasks" not in screen.getvalue()


def test_notes_name_the_update() -> None:
    notes = io.StringIO()
    with RichProgress(Console(file=io.StringIO()), Console(file=notes)) as progress:
        progress.update_started(["ant"])
        progress.phase_started("grow", 2, 30)
        progress.update_started([])
    assert notes.getvalue().splitlines() == [
        "update: 1 new class (ant)",
        "update: grow, 2 epochs over 30 images",
        "update: no new class",
    ]
