"""What every method keeps to, continued: an update that is killed goes on."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from grace.engine.journal import Journal
from support.contract import every_variant, with_epochs
from support.hand_worked import Killed
from support.recorded_streams import STREAM, kept_parts, loaded, same_parts, teach
from support.tiny_streams import create_home, labelled

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@every_variant
def test_an_update_killed_after_every_epoch_and_every_sweep_ends_with_the_same_bits(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs of two steps: the second starts from momenta, and from draws of its own."""
    home, offer, perform = tmp_path / "home", Journal.offer_phase, Journal.perform
    create_home(with_epochs(variant, 2), home)
    teach(loaded(home, 0), labelled(STREAM[0]))
    shutil.copytree(home, tmp_path / "straight")
    straight = loaded(tmp_path / "straight", 1)
    work = teach(straight, labelled(STREAM[1])).work
    done: list[str] = []

    def after_epoch(journal: Journal, number: int, phase: Any, *rest: Any, is_last: bool) -> None:
        offer(journal, number, phase, *rest, is_last=is_last)
        done.append(f"an epoch of {phase.name}")
        if not is_last:
            raise Killed

    def after_item(journal: Journal, number: int, item: Any, *rest: Any) -> Any:
        result = perform(journal, number, item, *rest)
        if item.name not in done:
            done.append(item.name)
            raise Killed
        return result

    # A snapshot after every epoch, however short.
    monkeypatch.setattr(Journal.__init__, "__defaults__", (0.0, 0.0))
    monkeypatch.setattr(Journal, "offer_phase", after_epoch)
    monkeypatch.setattr(Journal, "perform", after_item)
    for _ in range(sum(2 if item.epochs else 1 for item in work)):
        with pytest.raises(Killed):
            teach(loaded(home, 1), labelled(STREAM[1]))
    made = loaded(home, 1)
    again = teach(made, labelled(STREAM[1]))
    # Nothing was done twice.
    expected = [[*[f"an epoch of {i.name}"] * (2 if i.epochs else 0), i.name] for i in work]
    assert done == [name for names in expected for name in names]
    assert same_parts(kept_parts(made), kept_parts(straight))
    assert [(i.name, i.losses) for i in again.work] == [(i.name, i.losses) for i in work]
