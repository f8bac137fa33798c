"""Words and tables for the accuracies of single classes and for the gate. Imports no torch."""

from collections.abc import Sequence
from typing import Any

from grace.base.words import in_interval, printable
from grace.cli.columns import aligned
from grace.learner.accuracies import Accuracies, ClassAccuracy
from grace.learner.gate import Ruling, can_show, lost_classes
from grace.learner.predictor import Predictor
from grace.learner.statistics import LEVEL, wilson

TEST = f"paired test at {100 * LEVEL:g} %"
"""Name of the test in messages."""


def losses(accuracy: Accuracies, class_names: Sequence[str], most: int = 8) -> str:
    """Name the classes that lost accuracy by the paired test, worst first; empty: there are none.

    Args:
        accuracy: of an update.
        class_names: by class index.
        most: number of classes to name.
    """
    return _named(lost_classes(accuracy), class_names, most)


def gate_text(ruling: Ruling, class_names: Sequence[str], *, is_first: bool) -> str:
    """Say what one limit decided, and how sure that is.

    Args:
        ruling: the verdict.
        class_names: by class index.
        is_first: the update is the learner's first one, before which there were no classes.
    """
    option = f"--{ruling.name.replace('_', '-')}"
    if ruling.name != "min_new" and is_first:
        return f"nothing to judge: there were no classes before ({option})"
    if ruling.observed is None:
        whose = "new" if ruling.name == "min_new" else "old"
        return f"could not judge: no images of the {whose} classes are held out ({option})"
    verdict = "passed" if ruling.is_passed else "rejected"
    if ruling.name == "min_new":
        doubt = "" if ruling.is_sure else "; chance could explain the difference"
        return (
            f"{verdict}: {ruling.observed:.1f} % of the images of new classes are right, "
            f"{ruling.limit:g} needed ({option}){doubt}"
        )
    whose = "the old classes" if ruling.name == "max_drop" else "the worst class"
    text = f"{verdict}: {whose} {change(ruling.observed)}, {ruling.limit:g} allowed ({option})"
    return text + _doubt(ruling, class_names)


def change(drop: float) -> str:
    """Return a change of accuracy in words: "lost 1.2 points", "gained 0.3 points"."""
    return f"{'lost' if drop >= 0 else 'gained'} {abs(drop):.1f} points"


def class_table(accuracy: Accuracies, class_names: Sequence[str], most: int = 8) -> list[str]:
    """Return a table: old classes, the largest drop first, then new ones, the worst first.

    Args:
        accuracy: of an update.
        class_names: by class index.
        most: number of rows of each kind; classes that lost accuracy are always shown.
    """
    lost = lost_classes(accuracy)
    rows = [("class", "before", "95 % interval", "after", "95 % interval", "")]
    old, new = accuracy.old_classes, accuracy.new_classes
    shown = [*old[: max(most, len(lost))], *new[:most]]
    rows += [
        (
            printable(class_names[own.index]),
            "–" if own.before is None else f"{100 * own.before / own.num:.1f} %",
            in_interval(own.interval_before) if own.interval_before else "",
            f"{100 * own.after / own.num:.1f} %",
            in_interval(own.interval),
            f"of {own.num}" + (": lost" if own in lost else ""),
        )
        for own in shown
    ]
    cells = rows if old else [(row[0], *row[3:]) for row in rows]
    lines = aligned(cells, right="<>>>>")
    more = len(old) + len(new) - len(shown)
    return [*lines, f"and {more} more: grace history MODEL --classes"] if more else lines


def class_facts(accuracy: Accuracies, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return each class's numbers for programs: shares in [0, 1], drops in percentage points."""
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
    """Return the gate's verdicts for programs."""
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
        }
        for ruling in rulings
    ]


def predictor_text(predictor: Predictor) -> str:
    """Say which predictor answers, and how far its probabilities can be trusted."""
    if predictor.calibration_error is None:
        return f"{predictor.words}; too few held-out images to calibrate it"
    before, after = (f"{100 * error:.1f}" for error in predictor.calibration_error)
    return (
        f"{predictor.words}, temperature {predictor.temperature:.2f}: calibration error "
        f"{before} % before, {after} % after"
    )


def interval(accuracy: float, num: int) -> str:
    """Return the 95 % interval of an accuracy: "68 – 91 %".

    Args:
        accuracy: a share.
        num: number of images, at least 1.
    """
    return in_interval(wilson(min(num, round(accuracy * num)), num))


def _doubt(ruling: Ruling, class_names: Sequence[str]) -> str:
    """Say what the verdict on a drop leaves open; empty: nothing."""
    whose = "of the old classes" if ruling.name == "max_drop" else "of a class"
    shown = can_show(ruling.num, ruling.smallest, whose)
    if not ruling.is_passed:
        return "" if ruling.is_sure else f"; chance could explain it: {shown}"
    if ruling.doubtful:
        names = _named(ruling.doubtful, class_names, 4)
        return f"; cannot tell about {names}: {shown}"
    if not ruling.is_sure:
        return f"; cannot tell for less: {shown}"
    return ""


def _named(classes: Sequence[ClassAccuracy], class_names: Sequence[str], most: int) -> str:
    texts = [
        f"{printable(class_names[own.index])} {_percent(own.before or 0, own)} → "
        f"{_percent(own.after, own)} %"
        for own in classes[:most]
    ]
    more = f" and {len(classes) - most} more" if len(classes) > most else ""
    return ", ".join(texts) + more


def _percent(count: int, own: ClassAccuracy) -> str:
    return f"{100 * count / own.num:.1f}"
