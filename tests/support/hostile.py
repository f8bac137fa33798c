"""Damaged and forged learners: a real small one, thousands of ways to spoil it, and the verdict.

Opening, describing and asking a spoilt learner gives one clear error, or a sound answer where the
spoilt part does not matter. It never crashes, hangs, takes much memory, touches a file elsewhere,
or runs anything. Run as a program it examines many mutants in a process of its own::

    PYTHONPATH=tests python -m support.hostile FOLDER --count 2000 --seed 0 --out report.json
"""

import argparse
import contextlib
import errno
import io
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final
from unittest import mock

import torch

from grace.cli.show import aligned, plain, show
from grace.cli.versions import history_table, row_facts
from grace.learner import inventory
from grace.learner.history import ledger
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from support import hostile_mutations
from support.hostile_guard import Guard
from support.hostile_model import PROBE, Model, make_model, remove, small_backbones, update
from support.hostile_mutations import Mutant


@final
@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    outcomes: dict[str, str]
    """"refused" or "answered" by what was asked of it."""
    messages: list[str]
    wrong: list[str]
    """What must not happen; none of it where all is well."""


@final
class Examiner:
    """Asks spoilt learners everything that their files could spoil.

    Args:
        model: the learner; each mutant is put in its place.
        outside: a folder beside it, full of what mutants reach for.
    """

    def __init__(self, model: Model, outside: Path) -> None:
        self.model = model
        self._outside = Model(outside)
        self._guard = Guard(model.path)
        self._describe = info
        # Imports that backbones ask for take seconds.
        from torchvision.models import get_model  # noqa: F401

        with suppress(ImportError):
            import timm  # noqa: F401
        # All else that is imported late is imported now; then a sound learner gives no cause.
        for spoil in (None, _without_journal, None):
            sound = self.examine(spoil, updates=True)
        assert not sound.wrong, sound
        assert set(sound.outcomes.values()) == {"answered"}, sound
        self._guard.is_learning = False

    def examine(self, spoil: Callable[[Path], None] | None, *, updates: bool = False) -> Verdict:
        """Spoil the learner, judge what happens, and put it back."""
        try:
            if spoil:
                spoil(self.model.path)
            return self._judge(updates)
        finally:
            self.model.restore()

    def _judge(self, updates: bool) -> Verdict:
        outcomes: dict[str, str] = {}
        messages: list[str] = []
        wrong: list[str] = []
        before, outside = self.model.looks(), self._outside.looks()
        # Both read the same documents, so that each is asked every other time.
        self._describe = history if self._describe is info else info
        for name, ask in (("describe", self._describe), ("predict", predict)):
            outcomes[name] = self._ask(ask, messages, wrong, may_write=False)
        if self.model.looks() != before:
            wrong.append("reading has changed the model")
        if updates:
            outcomes["update"] = self._ask(predict_updated, messages, wrong, may_write=True)
        if self._outside.looks() != outside:
            wrong.append("a file elsewhere has changed")
        return Verdict(outcomes, messages, wrong)

    def _ask(
        self,
        ask: Callable[[Path], None],
        messages: list[str],
        wrong: list[str],
        *,
        may_write: bool,
    ) -> str:
        raised: Exception | None = None
        with self._guard.watching(may_write=may_write) as seen, warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                ask(self.model.path)
            except Exception as error:
                raised = error
        wrong.extend(f"{ask.__name__}: {what}" for what in seen)
        if raised is None:
            return "answered"
        if isinstance(raised, ValueError | OSError):
            messages.append(str(raised))
            wrong.extend(self._unclear(raised))
        else:
            wrong.append("".join(traceback.format_exception(raised, limit=-3)))
        return "refused"

    def _unclear(self, error: Exception) -> Iterator[str]:
        """What keeps a message from being one clear line about these files."""
        text = str(error)
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            yield "asks for more memory than there is"
        if not text.isprintable() or not 10 < len(text) < 1_000:
            yield f"is no printable line: {text[:300]!r}"
        if str(self.model.path) not in text:
            yield f"does not say which model: {text[:300]!r}"


def _without_journal(path: Path) -> None:
    remove(path / "pending")


def info(path: Path) -> None:
    """Print what ``grace info`` prints."""
    facts = plain(inventory.facts(ModelStore.open(path)))
    json.dumps(facts)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        show(facts)
    assert all(map(str.isprintable, printed.getvalue().splitlines())), printed.getvalue()


def history(path: Path) -> None:
    """Print what ``grace history`` prints."""
    home = ModelStore.open(path)
    entries = ledger(home.history(), home.numbers(), home.current())
    lines = aligned(list(history_table(entries, asked=False)))
    assert all(map(str.isprintable, lines)), lines
    json.dumps([row_facts(entry, asked=False) for entry in entries])
    json.dumps([change.words for change in home.history()])


def predict(path: Path) -> None:
    """Load a learner and ask it about two images."""
    check_answers(Learner.load(path))


def predict_updated(path: Path) -> None:
    """Load a learner, finish its update, and ask it."""
    learner = Learner.load(path)
    update(learner)
    check_answers(learner)


def check_answers(learner: Learner) -> None:
    """Answers have the right shape and are probabilities."""
    found = learner.predict_proba(PROBE)
    assert found.shape == (2, len(learner.class_names)), found.shape
    assert bool(found.isfinite().all()), found
    assert bool(((found.sum(dim=1) - 1).abs() < 1e-4).all()), found
    scores = learner.scores(PROBE)
    for name, own in scores.items():
        assert own.shape == found.shape, name
        assert bool(own.isfinite().all()), name
    with suppress(ValueError):
        learner.unknown(PROBE, 0.4)


@final
@dataclass
class Report:
    """Mutants by kind and outcome, and those of which something was wrong."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    messages: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    seconds: float = 0.0

    def add(self, mutant: Mutant, verdict: Verdict, seconds: float) -> None:
        """Count one mutant."""
        refused = "refused" in verdict.outcomes.values()
        outcome = "failed" if verdict.wrong else "refused" if refused else "answered"
        self.counts[mutant.kind, outcome] += 1
        self.slowest = max(self.slowest, (seconds, f"{mutant.seed}: {mutant.what}"))
        self.messages.update(verdict.messages)
        if verdict.wrong:
            self.failures.append({**asdict(mutant), "wrong": verdict.wrong[:3]})

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        counts: dict[str, dict[str, int]] = {}
        for (kind, outcome), number in sorted(self.counts.items()):
            counts.setdefault(kind, {})[outcome] = number
        return {
            "counts": counts,
            "mutants": self.counts.total(),
            "failures": self.failures,
            "slowest": {"seconds": round(self.slowest[0], 2), "mutant": self.slowest[1]},
            "seconds": round(self.seconds, 1),
            "messages": len(self.messages),
        }


def prepare(folder: Path) -> Examiner:
    """Make a learner in a new folder, with what is not its own beside it."""
    outside = folder / "outside"
    (outside / "versions").mkdir(parents=True)
    (outside / "secret.json").write_text('{"version": 1}\n')
    (outside / ".grace-unfinished-00000000000000000000000000000000").write_text(
        "a killed writer's, elsewhere"
    )
    make_model(folder / "model")
    return Examiner(Model(folder / "model"), outside)


def examine_many(examiner: Examiner, seed: int, numbers: range) -> Report:
    """Examine the mutants of some numbers; the first are the specials."""
    report = Report()
    started = time.perf_counter()
    for number in numbers:
        before = time.perf_counter()
        spoilt = hostile_mutations.spoil(examiner.model.files, seed, number)
        verdict = examiner.examine(spoilt.write, updates=spoilt.updates)
        report.add(spoilt.mutant, verdict, time.perf_counter() - before)
    report.seconds = time.perf_counter() - started
    return report


def main() -> None:
    """Examine mutants; exit with 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="empty folder to work in")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--quick", action="store_true", help="do not fold batch norm")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with ExitStack() as patches:
        patches.enter_context(small_backbones())
        # Nothing here outlives the process.
        patches.enter_context(mock.patch("os.fsync"))
        if args.quick:
            # Tracing modules takes a third of the time, and meets nothing of what files say.
            patches.enter_context(mock.patch("grace.engine.trainer.folded", lambda module: module))
        examiner = prepare(args.folder)
        numbers = range(args.first, args.first + args.count)
        report = examine_many(examiner, args.seed, numbers).as_json()
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text)
    else:
        print(text)
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
