"""The journal of an unfinished update: the finished work that a restarted process reads.

Entry *n* belongs to the n-th item that ``learn`` yields. A sweep's entry holds its value, and for a
gradient sweep the buffers that it changed; a phase's entry holds its last snapshot. After a restart
``learn`` runs from its beginning: finished work is read, not repeated, and an unfinished phase goes
on from its last snapshot. An entry that cannot be read, was altered, or belongs to other work is
ignored: doing the work again gives the same result.
"""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from grace.base import atomic, strict_json, tensors
from grace.base.errors import DamagedError, GraceError, GraceWarning, Setting
from grace.base.files import inside, read_exactly, read_start
from grace.base.tensors import put_together, take_apart
from grace.base.words import one_line
from grace.engine.checkpoint import Snapshot, SweepResult
from grace.engine.parts import named_buffers
from grace.engine.phase import GradientSweep, LossProbe, Phase, Rounds, Sweep, Work
from grace.engine.phase_run import PHASE_STATE
from grace.engine.rounding import Rounding
from grace.engine.trainer import Trainer
from grace.learner.phase_content import content_address

# The errors that reading a forged entry may raise.
_UNFIT = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_SPARE_BYTES = 1 << 20
"""For step counts, losses and small values of an entry."""
_MOVED = "moved."
"""Prefix of the buffers' names in a gradient sweep's entry; its value's names are numbers."""


@final
class Journal:
    """Carries out an update's work and saves the finished part in a folder.

    Args:
        folder: existing folder of the entries.
        seconds_between: smallest time between two snapshots within one phase; a longer one loses
            more work when the process is killed.
        seconds_per_second: the time between two snapshots is also at least this many times what
            the last one took; 60 keeps snapshots below two percent of the time.
    """

    def __init__(
        self, folder: Path, seconds_between: float = 20.0, seconds_per_second: float = 60.0
    ) -> None:
        self._folder = folder
        self._between = seconds_between
        self._share = seconds_per_second
        self._next = time.monotonic() + seconds_between
        self.was_read = False
        """``True`` once an entry was read instead of doing its work."""
        self._rounding: str | None = None
        self._common: Journal | None = None
        """The journal of finished phases that other learners share, if there is one."""

    def share(self, folder: Path, trainer: Trainer) -> None:
        """Share finished phases with other learners that compute with the same rounding.

        Args:
            folder: the shared folder; a phase's entry is named after the hash of its content.
            trainer: its device and number of processes decide the rounding.
        """
        rounding = f"{Rounding.of(trainer.device)}; {trainer.ranks.num_processes} processes"
        place = inside(folder, hashlib.sha256(rounding.encode()).hexdigest()[:16])
        with suppress(OSError):  # Without a shared folder it trains alone.
            place.mkdir(parents=True, exist_ok=True)
            self._common = Journal(place)

    def perform(self, number: int, item: Work, trainer: Trainer) -> Any:  # noqa: ANN401 - a sweep's value is its reducer's
        """Carry out an item of an update, or read its saved result.

        Args:
            number: the item's position in the update, from 0.
            item: the phase or sweep.
            trainer: carries it out.
        """
        name = f"{number:04d}"
        self._rounding = trainer.device.description
        if isinstance(item, Phase | Rounds):
            mine = _PhaseEntry(self, name, item)
            address = content_address(item) if self._common else None
            if self._common is None or address is None:
                return trainer.run(item, mine)
            common = _PhaseEntry(self._common, address, item)
            return trainer.run(item, _CommonPhase(mine, common, item.phases[0].recipe.epochs))
        wanted = _sweep_key(item)
        found = self._read(name, wanted, _most_bytes(item))
        if found is not None:
            with suppress(*_UNFIT):
                value = put_together(found[0]["value"], found[1])
                known = SweepResult(value, _seconds(found[0]["seconds"]), _moved(found[1]))
                return trainer.recall(item, known)
        result = trainer.run(item)
        kept: dict[str, Tensor] = {}
        entry = {
            **wanted,
            "value": take_apart(result, kept),
            "seconds": trainer.work[-1].seconds.total,
        }
        if isinstance(item, GradientSweep):
            kept |= {_MOVED + name: buffer for name, buffer in named_buffers(item.parts).items()}
        self._write(name, entry, kept)
        return result

    def saved_phase(self, name: str, phase: Phase | Rounds) -> Snapshot | None:
        """Return the last snapshot of a phase or of ``Rounds``; ``None``: there is none."""
        found = self._read(name, _phase_key(phase), _most_bytes(phase))
        if found is None:
            return None
        entry, kept = found
        with suppress(*_UNFIT):
            epochs = int(entry["snapshot"]["epochs"])
            if not 0 < epochs <= phase.phases[0].recipe.epochs:
                return None
            return Snapshot(
                epochs=epochs,
                tensors=kept,
                losses=_losses(entry["snapshot"]["losses"]),
                seconds=_seconds(entry["snapshot"]["seconds"]),
                scaler=dict(entry["snapshot"]["scaler"]),
            )
        return None

    def offer_phase(
        self, name: str, phase: Phase | Rounds, take: Callable[[], Snapshot], *, is_last: bool
    ) -> None:
        """Save a phase's snapshot if it is the last one, or enough time has passed.

        Args:
            name: name of the entry.
            phase: the phase or ``Rounds``.
            take: returns the snapshot; called only if it will be saved.
            is_last: the phase is finished.
        """
        started = time.monotonic()
        if not is_last and started < self._next:
            return
        snapshot = take()
        facts = asdict(snapshot)
        del facts["tensors"], facts["is_shared"]
        self._write(name, {**_phase_key(phase), "snapshot": facts}, snapshot.tensors)
        ended = time.monotonic()
        self._next = ended + max(self._between, self._share * (ended - started))

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Report a program error as a damaged journal if work was read from the journal.

        Raises:
            DamagedError: in place of an error of the program.
        """
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, AttributeError, LookupError, TypeError, RuntimeError) as error:
            if not (self.was_read or (self._common is not None and self._common.was_read)):
                raise
            raise DamagedError(
                f"the unfinished update in '{self._folder}' cannot go on: {error!r}",
                setting=Setting("discard", "true"),
            ) from error

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _read(
        self, name: str, wanted: Mapping[str, Any], most_bytes: int
    ) -> tuple[Mapping[str, Any], dict[str, Tensor]] | None:
        """Read an entry.

        Args:
            name: name of the entry.
            wanted: what it must say about the work.
            most_bytes: the most bytes that its tensors can have; larger ones are not read.
        """
        path = self._path(name)
        if not path.exists():
            return None
        with suppress(DamagedError):
            num_bytes, what = path.lstat().st_size, f"'{path}'"
            outline, metadata = tensors.outline(
                partial(read_start, path, what, num_bytes), num_bytes, what
            )
            text = metadata.get("entry", "null")
            entry = strict_json.parse(text.encode(), "journal")
            if not isinstance(entry, dict) or not wanted.items() <= entry.items():
                return None
            if sum(tensor.nbytes for tensor in outline.values()) > most_bytes:
                return None
            kept, again = tensors.decode(read_exactly(path, what, num_bytes), "journal")
            if again != metadata or metadata.get("sha256") != _digest(text, kept):
                return None
            # Tensors of a phase's state may be infinite, weights may not.
            weights = (tensor for name, tensor in kept.items() if PHASE_STATE not in name)
            if all(bool(tensor.isfinite().all()) for tensor in weights):
                self._notice_rounding(entry.get("rounding"))
                self.was_read = True
                return entry, kept
        return None

    def _notice_rounding(self, before: object) -> None:
        """Warn once if the saved work was done with other threads, layout or number format.

        The update goes on: people move to another machine. Older entries do not say it.
        """
        if self.was_read or None in (before, self._rounding) or before == self._rounding:
            return
        text = (
            f"the interrupted update goes on under other rounding ({self._rounding}; before: "
            f"{before}): its weights will differ in their last digits from uninterrupted ones"
        )
        warnings.warn(one_line(text), GraceWarning, stacklevel=2)

    def _write(self, name: str, entry: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        text = strict_json.dump({**entry, "rounding": self._rounding}).decode()
        metadata = {"entry": text, "sha256": _digest(text, kept)}
        atomic.write_bytes(self._path(name), tensors.encode(kept, metadata))


@final
class _PhaseEntry:
    """The snapshot store of one phase: its entry of the journal."""

    is_shared = False

    def __init__(self, journal: Journal, name: str, phase: Phase | Rounds) -> None:
        self._journal = journal
        self._name = name
        self._phase = phase

    def saved(self) -> Snapshot | None:
        return self._journal.saved_phase(self._name, self._phase)

    def offer(self, take: Callable[[], Snapshot], *, is_last: bool) -> None:
        self._journal.offer_phase(self._name, self._phase, take, is_last=is_last)


@final
class _CommonPhase:
    """The snapshot store of a shared phase: who finishes it first saves it for all learners."""

    is_shared = True

    def __init__(self, mine: _PhaseEntry, common: _PhaseEntry, epochs: int) -> None:
        self._mine = mine
        self._common = common
        self._epochs = epochs

    def saved(self) -> Snapshot | None:
        mine = self._mine.saved()
        if mine is not None and mine.epochs == self._epochs:
            return mine
        common = self._common.saved()
        return mine if common is None else replace(common, is_shared=True)

    def offer(self, take: Callable[[], Snapshot], *, is_last: bool) -> None:
        self._mine.offer(take, is_last=is_last)
        if is_last:
            with suppress(OSError):  # A full disk here must not end the run.
                self._common.offer(take, is_last=True)


def _seconds(value: object) -> float:
    seconds = _finite(value)
    if seconds < 0:
        raise GraceError("no duration")
    return seconds


def _losses(values: Mapping[str, object]) -> dict[str, float]:
    # In ``Rounds`` the name of a phase and a slash come before the loss.
    if not all(name.rpartition("/")[2].isidentifier() for name in values):
        raise GraceError("no names of losses")
    return {name: _finite(value) for name, value in values.items()}


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise GraceError("no number")
    return float(value)


def _digest(text: str, kept: Mapping[str, Tensor]) -> str:
    """Hash an entry's text and its tensors of any shape."""
    digest = hashlib.sha256(text.encode())
    for chunk in tensors.chunks(kept):
        digest.update(chunk)
    return digest.hexdigest()


def _most_bytes(item: Work) -> int:
    """Return the most bytes that the tensors of an item's entry can have.

    A phase keeps what it changes, two moments of it at most, and its mean. A sweep keeps features
    (N, D), moments of features (D, D), or as much as its parts have.
    """
    if isinstance(item, Rounds):
        return sum(_most_bytes(phase) for phase in item.phases)
    states: list[dict[str, Tensor]] = [part.module.state_dict() for part in item.parts.values()]
    own: int = sum(tensor.nbytes for state in states for tensor in state.values())
    if isinstance(item, Phase):
        copies = 4 if item.recipe.average_epochs else 3
        return copies * own + sum(tensor.nbytes for tensor in item.state.values()) + _SPARE_BYTES
    width = sum(max((t.shape[0] for t in s.values() if t.ndim), default=1) for s in states)
    return 3 * own + 8 * width * (len(item.data) + width) + _SPARE_BYTES


def _phase_key(phase: Phase | Rounds) -> dict[str, Any]:
    if isinstance(phase, Rounds):
        turns = [_phase_key(turn) for turn in phase.phases]
        return {"kind": "rounds", "name": phase.name, "phases": turns}
    return {
        "kind": "phase",
        "name": phase.name,
        "images": len(phase.data),
        "recipe": phase.recipe.model_dump(mode="json"),
    }


def _sweep_key(sweep: Sweep | GradientSweep | LossProbe) -> dict[str, Any]:
    key: dict[str, Any] = {"kind": "sweep", "name": sweep.name, "images": len(sweep.data)}
    key["parts"] = list(sweep.parts)
    if isinstance(sweep, GradientSweep):
        key |= {"kind": "gradient sweep", "batch_size": sweep.batch_size}
    elif isinstance(sweep, LossProbe):
        key |= {"kind": "measures", "settings": sweep.settings.model_dump(mode="json")}
    return key


def _moved(kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    moved = {name: tensor for name, tensor in kept.items() if name.startswith(_MOVED)}
    return {name.removeprefix(_MOVED): tensor for name, tensor in moved.items()}
