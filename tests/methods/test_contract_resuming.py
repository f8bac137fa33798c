"""What every method keeps to, continued: a phase that is killed in its midst goes on."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import final

import pytest

from grace.engine.checkpoint import Snapshot
from grace.engine.journal import Journal
from grace.engine.phase import Phase
from support.contract import every_variant, with_epochs
from support.recorded_streams import STREAM, kept_parts, loaded, same_parts, teach
from support.tiny_streams import create_home, labelled

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@final
class Killed(BaseException):
    """As an interrupt, but one that pytest does not take for its own."""


@every_variant
def test_an_update_killed_within_each_of_its_phases_ends_with_the_same_bits(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs of two steps: the second starts from momenta, and from draws of its own."""
    home, offer = tmp_path / "home", Journal.offer_phase
    create_home(with_epochs(variant, 2), home)
    teach(loaded(home, 0), labelled(STREAM[0]))
    shutil.copytree(home, tmp_path / "straight")
    straight = loaded(tmp_path / "straight", 1)
    work = teach(straight, labelled(STREAM[1])).work
    phases = [done.name for done in work if done.epochs]

    epochs: list[str] = []

    def killed(
        journal: Journal,
        number: int,
        phase: Phase,
        take: Callable[[], Snapshot],
        *,
        is_last: bool,
    ) -> None:
        offer(journal, number, phase, take, is_last=is_last)
        epochs.append(phase.name)
        if not is_last:
            raise Killed

    # A snapshot after every epoch, however short.
    monkeypatch.setattr(Journal.__init__, "__defaults__", (0.0, 0.0))
    monkeypatch.setattr(Journal, "offer_phase", killed)
    for attempt in range(1, len(phases) + 1):
        with pytest.raises(Killed):
            teach(loaded(home, 1), labelled(STREAM[1]))
        assert len(epochs) == 2 * attempt - 1
    made = loaded(home, 1)
    again = teach(made, labelled(STREAM[1]))
    # No epoch was done twice.
    assert epochs == [name for name in phases for _ in range(2)]
    assert same_parts(kept_parts(made), kept_parts(straight))
    assert [(done.name, done.losses) for done in again.work] == [
        (done.name, done.losses) for done in work
    ]
