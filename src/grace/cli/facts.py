"""Facts of an update that several verbs show: why it ended so, its gate, its classes."""

from collections.abc import Sequence
from typing import Any

from grace.learner.document import UpdateRecord
from grace.learner.gate import Accuracies, Ruling, can_show, lost_classes
from grace.settings.experiment import ExperimentSettings

HIDDEN_OF_CLASSES = {
    f"classes.{key}" for key in ("index", "num_lost", "num_won", "drop_points", "p_value")
}
"""Facts of ``class_facts`` that are for programs only."""

_DONE = {
    "start": "trained afresh",
    "grow": "grew",
    "compress": "compressed",
    "compress (budget)": "compressed for the budget",
    "refresh": "refreshed",
    "train": "trained further",
    "skip": "nothing was trained",
}


def why(update: UpdateRecord, settings: ExperimentSettings) -> str:
    """Return in one sentence what the method decided, and why."""
    outcome = update.outcome
    reasons = [outcome.reason]
    if not outcome.reason and outcome.saturation is not None and outcome.threshold is not None:
        side = "below" if outcome.saturation < outcome.threshold else "not below"
        reasons = [
            f"the newest backbone uses {outcome.saturation:.4g} of its feature space, {side} the "
            f"threshold of {outcome.threshold:.4g}"
        ]
    if outcome.verdict == "compress (budget)":
        limit = settings.memory.max_mb
        ceiling = "its ceiling" if limit is None else f"{limit:g} MB"
        reasons.append(f"one more backbone would not fit into {ceiling}")
    return f"{_DONE[outcome.verdict]}: {', but '.join(filter(None, reasons))}".removesuffix(": ")


def class_facts(accuracy: Accuracies, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the numbers of each class: shares in [0, 1], drops in percentage points."""
    lost = lost_classes(accuracy)
    return [
        {
            "name": class_names[own.index],
            "index": own.index,
            "num_held_out": own.num,
            "before": None if own.before is None else own.before / own.num,
            "before_interval": own.interval_before and list(own.interval_before),
            "after": own.after / own.num,
            "after_interval": list(own.interval),
            "drop_points": own.drop,
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
        {
            "limit": ruling.name,
            "points": ruling.limit,
            "passed": ruling.is_passed,
            "observed_points": ruling.observed,
            "num_held_out": ruling.num,
            "sure": ruling.is_sure,
            "p_value": ruling.chance,
            "smallest_drop_points": ruling.smallest,
            "doubtful_classes": [class_names[own.index] for own in ruling.doubtful],
            "text": gate_text(ruling, class_names),
        }
        for ruling in rulings
    ]


def gate_text(ruling: Ruling, class_names: Sequence[str]) -> str:
    """Say what one limit of the gate decided, and how sure that is."""
    option = f"--{ruling.name.replace('_', '-')}"
    if ruling.observed is None:
        whose = "new" if ruling.name == "min_new" else "old"
        return f"could not judge: no images of {whose} classes are held out ({option})"
    verdict = "passed" if ruling.is_passed else "rejected"
    if ruling.name == "min_new":
        doubt = "" if ruling.is_sure else "; chance could explain the difference"
        return (
            f"{verdict}: {ruling.observed:.1f} % of the images of new classes are right, "
            f"{ruling.limit:g} needed ({option}){doubt}"
        )
    whose = "the old classes" if ruling.name == "max_drop" else "the worst class"
    change = f"{'lost' if ruling.observed >= 0 else 'gained'} {abs(ruling.observed):.1f} points"
    text = f"{verdict}: {whose} {change}, {ruling.limit:g} allowed ({option})"
    if ruling.is_sure and not ruling.doubtful:
        return text
    shown = can_show(
        ruling.num,
        ruling.smallest,
        "of the old classes" if ruling.name == "max_drop" else "of a class",
    )
    if not ruling.is_passed:
        return f"{text}; chance could explain it: {shown}"
    names = ", ".join(class_names[own.index] for own in ruling.doubtful[:4])
    about = f"about {names}" if names else "for less"
    return f"{text}; cannot tell {about}: {shown}"
