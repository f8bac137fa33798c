"""The journal of unfinished work: the finished part that a restarted process reads.

Entry *n* belongs to the n-th item that a method yields. A sweep's entry holds its value, and for a
gradient sweep the buffers that it changed; a phase's entry holds its last snapshot. After a restart
the method runs from its beginning: finished work is read, not repeated, and an unfinished phase
goes on from its last snapshot. An entry that cannot be read, was altered, or belongs to other work
is ignored: doing the work again gives the same result.

Ctrl-C ends the process (exit code 130) as a kill would: finished work and the last snapshot stay
here, and the same command, for ``grace run`` with ``--resume``, goes on from them
(docs/exit-codes.md).
"""

import hashlib
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from pydantic import TypeAdapter
from torch import Tensor

from grace.base import atomic, tensors
from grace.base.errors import DamagedError, GraceWarning
from grace.base.files import inside
from grace.base.words import one_line
from grace.engine import rounding
from grace.engine.checkpoint import Duration, Snapshot, SweepResult, put_together, take_apart
from grace.engine.parts import named_buffers
from grace.engine.phase import GradientSweep, LossProbe, Phase, Rounds, Work
from grace.engine.phase_run import PHASE_STATE
from grace.engine.trainer import Trainer

# The errors that reading a forged entry may raise.
_UNFIT = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_SPARE_BYTES = 1 << 20
"""For step counts, losses and small values of an entry."""
_SNAPSHOT, _DURATION = TypeAdapter(Snapshot), TypeAdapter[float](Duration)
_MOVED = "moved."
"""Prefix of the buffers' names in a gradient sweep's entry; its value's names are numbers."""


@final
class Journal:
    """Carries out work and saves the finished part in a folder.

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

    def share(self, folder: Path, trainer: Trainer) -> None:
        """Share finished phases with others that do the same work with the same rounding.

        Args:
            folder: for equal data, settings, seeds and versions only.
            trainer: its device and number of processes decide the rounding.
        """
        described = f"{rounding.describe(trainer.device)}; {trainer.ranks.num_processes} processes"
        place = inside(folder, hashlib.sha256(described.encode()).hexdigest()[:16])
        with suppress(OSError):  # Without a shared folder it trains alone.
            place.mkdir(parents=True, exist_ok=True)
            self._common = Journal(place)

    def perform(self, number: int, item: Work, trainer: Trainer) -> Any:  # noqa: ANN401 - a sweep's value is its reducer's
        """Carry out the item at a position, from 0, or read its saved result."""
        name = f"{number:04d}"
        self._rounding = trainer.device.description
        if isinstance(item, Phase | Rounds):
            start = start_of(item) if self._common and isinstance(item, Phase) else None
            common = self._common if start else None
            return trainer.run(item, _Snapshots(self, name, item, common, start or ""))
        key = _key(item)
        found = self._read(name, key, _most_bytes(item))
        if found is not None:
            entry, kept = found
            with suppress(*_UNFIT):
                moved = {n.removeprefix(_MOVED): t for n, t in kept.items() if n.startswith(_MOVED)}
                value = put_together(entry["value"], kept)
                saved = SweepResult(value, _DURATION.validate_python(entry["seconds"]), moved)
                return trainer.run(item, saved=saved)
        result, kept = trainer.run(item), {}
        entry = {"value": take_apart(result, kept), "seconds": trainer.work[-1].seconds.total}
        if isinstance(item, GradientSweep):
            kept |= {_MOVED + name: buffer for name, buffer in named_buffers(item.parts).items()}
        self._write(name, {**key, **entry}, kept)
        return result

    def saved_phase(self, name: str, phase: Phase | Rounds) -> Snapshot | None:
        """Return the last snapshot of a phase; ``None``: there is none that can be used."""
        found = self._read(name, _key(phase), _most_bytes(phase))
        with suppress(*_UNFIT):
            facts, kept = found or ({}, {})
            saved = _SNAPSHOT.validate_python({**facts["snapshot"], "tensors": kept})
            if saved.epochs <= phase.phases[0].recipe.epochs:
                return saved
        return None

    def offer_phase(
        self, name: str, phase: Phase | Rounds, take: Callable[[], Snapshot], *, is_last: bool
    ) -> None:
        """Save the snapshot that ``take`` returns if it is the last, or enough time has passed."""
        started = time.monotonic()
        if not is_last and started < self._next:
            return
        snapshot = take()
        facts = {n: v for n, v in vars(snapshot).items() if n not in ("tensors", "is_shared")}
        self._write(name, {**_key(phase), "snapshot": facts}, snapshot.tensors)
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
                f"the unfinished work in '{self._folder}' cannot go on: {error!r}",
                "begin anew: grace learn --discard, or grace run without --resume",
            ) from error

    def _read(
        self, name: str, wanted: Mapping[str, Any], most_bytes: int
    ) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Read an entry that says ``wanted`` and whose tensors have at most so many bytes."""

        def check(entry: object, outline: Mapping[str, Tensor]) -> dict[str, Any]:
            num_bytes = sum(tensor.nbytes for tensor in outline.values())
            match entry:
                case dict() if wanted.items() <= entry.items() and num_bytes <= most_bytes:
                    return entry
            raise DamagedError("it belongs to other work")

        with suppress(DamagedError, FileNotFoundError):
            entry, kept = tensors.read_with(self._path(name), "journal", check)
            # Tensors of a phase's state may be infinite, weights may not.
            weights = (tensor for name, tensor in kept.items() if PHASE_STATE not in name)
            if all(bool(tensor.isfinite().all()) for tensor in weights):
                self._notice_rounding(entry.get("rounding"))
                self.was_read = True
                return entry, kept
        return None

    def _notice_rounding(self, before: object) -> None:
        """Warn once if the saved work was done with other threads, layout or number format.

        The work goes on: people move to another machine.
        """
        if self.was_read or None in (before, self._rounding) or before == self._rounding:
            return
        text = (
            f"the interrupted update goes on under other rounding ({self._rounding}; before: "
            f"{before}): its weights will differ in their last digits from uninterrupted ones"
        )
        warnings.warn(one_line(text), GraceWarning, stacklevel=2)

    def _write(self, name: str, entry: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        data = tensors.encode_with({**entry, "rounding": self._rounding}, kept)
        atomic.write_bytes(self._path(name), data)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"


@final
class _Snapshots:
    """The snapshots of one phase: its entry of the journal, and the one that others share.

    Args:
        journal: saves every snapshot.
        name: of the entry.
        phase: the phase or ``Rounds``.
        common: gets the last snapshot too; ``None``: nobody shares the phase.
        start: name of the shared entry.
    """

    def __init__(
        self, journal: Journal, name: str, phase: Phase | Rounds, common: Journal | None, start: str
    ) -> None:
        self.is_shared = common is not None
        self._journal = journal
        self._name = name
        self._phase = phase
        self._common = common
        self._start = start

    def saved(self) -> Snapshot | None:
        mine = self._journal.saved_phase(self._name, self._phase)
        if self._common is None or (mine and mine.epochs == self._phase.phases[0].recipe.epochs):
            return mine
        common = self._common.saved_phase(self._start, self._phase)
        return mine if common is None else replace(common, is_shared=True)

    def offer(self, take: Callable[[], Snapshot], *, is_last: bool) -> None:
        self._journal.offer_phase(self._name, self._phase, take, is_last=is_last)
        if self._common is not None and is_last:
            with suppress(OSError):  # A full disk here must not end the run.
                self._common.offer_phase(self._start, self._phase, take, is_last=True)


def start_of(phase: Phase) -> str | None:
    """Hash what a phase starts from; ``None`` if values that no hash can cover decide it too.

    Images, seeds and versions are those of the shared folder.
    """
    objective = phase.objective
    acts = (phase.rule, phase.after_step, phase.teacher, phase.augmentation, phase.rows or None)
    is_plain = isinstance(objective, types.FunctionType) and "<" not in objective.__qualname__
    if not is_plain or any(act is not None for act in acts):
        return None
    digest = hashlib.sha256(
        repr((_key(phase), phase.views, objective.__module__, objective.__qualname__)).encode()
    )
    for name, part in phase.parts.items():
        trains = part.trains if isinstance(part.trains, bool) else sorted(part.trains)
        form = (name, repr(part.module), tuple(part.reads), trains, part.mode, part.group)
        digest.update(repr(form).encode() + tensors.encode(part.module.state_dict()))
    digest.update(tensors.encode(phase.state))
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


def _key(item: Work) -> dict[str, Any]:
    """Return what an entry says of its work."""
    if isinstance(item, Rounds):
        return {"kind": "rounds", "name": item.name, "phases": [_key(turn) for turn in item.phases]}
    key: dict[str, Any] = {"kind": "sweep", "name": item.name, "images": len(item.data)}
    if isinstance(item, Phase):
        return key | {"kind": "phase", "recipe": item.recipe.model_dump(mode="json")}
    key["parts"] = list(item.parts)
    if isinstance(item, GradientSweep):
        return key | {"kind": "gradient sweep", "batch_size": item.batch_size}
    if isinstance(item, LossProbe):
        return key | {"kind": "measures", "settings": item.settings.model_dump(mode="json")}
    return key
