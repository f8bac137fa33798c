"""Facts of an update that several verbs show: why it ended so, its gate, its classes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grace.learner.document import UpdateRecord
from grace.learner.gate import Accuracies, Ruling, lost_classes

HIDDEN_OF_CLASSES = {f"classes.{key}" for key in ("num_lost", "num_won", "p_value")}
"""Facts of ``class_facts`` that are for programs only."""

_DONE = {
    "start": "trained afresh",
    "grow": "grew",
    "compress": "compressed",
    "compress (budget)": "compressed: one more backbone would not fit under the ceiling",
    "refresh": "refreshed",
    "train": "trained further",
    "skip": "nothing was trained",
}


def why(update: UpdateRecord) -> str:
    """Return in a few words what the method decided, and why."""
    outcome = update.outcome
    reason = outcome.reason
    if not reason and outcome.saturation is not None and outcome.threshold is not None:
        reason = f"saturation {outcome.saturation:.4g}, threshold {outcome.threshold:.4g}"
    return ": ".join(filter(None, (_DONE[outcome.verdict], reason)))


def class_facts(accuracy: Accuracies, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the numbers of each class: shares in [0, 1]."""
    lost = lost_classes(accuracy)
    return [
        {
            "name": class_names[own.index],
            "num_held_out": own.num,
            "before": None if own.before is None else own.before / own.num,
            "after": own.after / own.num,
            "after_interval": list(own.interval),
            "num_lost": own.lost,
            "num_won": own.won,
            "p_value": None if own.before is None else own.chance,
            "has_lost": own in lost,
        }
        for own in accuracy.classes
    ]


def gate_facts(rulings: Sequence[Ruling], class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the verdicts of the gate, in numbers and as a sentence."""
    return [
        asdict(own)
        | {
            "doubtful": [class_names[index] for index in own.doubtful],
            "text": own.words(class_names),
        }
        for own in rulings
    ]
