"""Why an update ended as it did, in words."""

import io
from typing import Any

import pytest
from rich.console import Console

from grace.cli._why import why
from grace.cli.progress import RichProgress
from grace.configs.experiment import ExperimentSettings, MemorySettings
from grace.configs.methods import (
    DERSettings,
    FosterSettings,
    GraceSettings,
    JointSettings,
    MemoSettings,
    ReplaySettings,
)
from grace.learner.document import Update
from grace.methods.outcome import Outcome


def told(method: Any, *, task: int = 3, backbones: int = 1, **outcome: Any) -> str:
    settings = ExperimentSettings(method=method, memory=MemorySettings(size=None, max_mb=2.5))
    update = Update(
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
    assert told(GraceSettings(), backbones=backbones, **outcome) == sentence


def test_a_list_that_decided() -> None:
    method = GraceSettings(expand_at=(3,))
    measured = {"saturation": 0.1, "threshold": 0.6}
    assert told(method, verdict="grow", **measured) == "grew: method.expand_at names update 3"
    assert told(method, task=2, verdict="compress", **measured) == (
        "compressed: method.expand_at does not name update 2"
    )


@pytest.mark.parametrize(
    ("method", "verdict", "sentence"),
    [
        (DERSettings(), "grow", "grew: der adds a backbone with every update"),
        (MemoSettings(), "grow", "grew: memo adds a last stage with every update"),
        (
            FosterSettings(),
            "compress",
            "compressed: foster makes one backbone of two with every update",
        ),
        (ReplaySettings(), "update", "trained further: replay keeps to one backbone"),
        (GraceSettings(), "base", "trained afresh: the first update makes the first backbone"),
        (JointSettings(), "base", "trained afresh: joint trains one network on all images"),
        (
            JointSettings(final_task_only=True),
            "skip",
            "nothing was trained: joint waits for the last update (final_task_only)",
        ),
        (
            GraceSettings(),
            "refresh",
            "refreshed: no class is new, so the newest backbone was trained further",
        ),
    ],
)
def test_methods_that_decide_nothing(method: Any, verdict: str, sentence: str) -> None:
    assert told(method, verdict=verdict) == sentence


def test_bars_name_the_update() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, legacy_windows=False)
    with RichProgress(console) as progress:
        progress.waiting("reading")
        progress.update_started(3, ["ant"])
        progress.phase_started("grow", 2, 30)
        progress.epoch_finished("grow", 2, 2, {"classification": 0.5}, 0.1)
        progress.phase_finished("grow", 1.5)
    assert "update 3  grow" in screen.getvalue()
    assert "epoch 2/2" in screen.getvalue()
    assert "tasks" not in screen.getvalue()


def test_notes_name_the_update() -> None:
    notes = io.StringIO()
    with RichProgress(Console(file=io.StringIO()), Console(file=notes)) as progress:
        progress.update_started(3, ["ant"])
        progress.phase_started("grow", 2, 30)
        progress.update_started(4, [])
    assert notes.getvalue().splitlines() == [
        "update 3: 1 new class (ant)",
        "update 3: grow, 2 epochs over 30 images",
        "update 4: no new class",
    ]
