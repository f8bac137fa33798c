"""The output of ``grace evaluate``: a page, or the same facts as JSON. Imports no torch."""

from typing import Any

from grace.base.words import counted, in_interval, printable
from grace.cli.show import aligned
from grace.learner.evaluated import ClassResult, Evaluated


def page(found: Evaluated, min_accuracy: float | None, most: int = 10) -> list[str]:
    """Return the lines to print.

    Args:
        found: the results.
        min_accuracy: accuracy in percent that was required; ``None``: none was.
        most: number of confusions to list.
    """
    facts = [("accuracy", f"{in_words(found.overall)} images")]
    if min_accuracy is not None:
        verdict = "reached" if found.reaches(min_accuracy) else "missed"
        facts.append(("required", f"{min_accuracy:g} %: {verdict}"))
    facts.append(("calibration", calibration(found)))
    if found.problems:
        facts.append(("unreadable", f"{counted(len(found.problems), 'image')} left out"))
    rows = [("class", "accuracy", "95 % interval", "images")]
    rows += [(printable(own.name), *cells(own)) for own in found.classes]
    lines = [
        f"version {found.version} of '{printable(str(found.model))}' on "
        f"'{printable(str(found.images))}'",
        "",
        *aligned(facts),
        "",
        *aligned(rows, right="<>>>"),
    ]
    if found.confusions:
        pairs = [("most confused", "taken for", "images")]
        pairs += [
            (printable(pair.class_name), printable(pair.predicted), str(pair.num))
            for pair in found.confusions[:most]
        ]
        lines += ["", *aligned(pairs, right="<<>")]
    return lines


def as_dict(found: Evaluated, min_accuracy: float | None) -> dict[str, Any]:
    """Return the same facts for programs: shares in [0, 1], every confusion."""
    overall = found.overall
    return {
        "model": str(found.model),
        "version": found.version,
        "images": str(found.images),
        "num_images": overall.num,
        "num_right": overall.num_right,
        "accuracy": overall.accuracy,
        "accuracy_interval": list(overall.interval),
        "min_accuracy_percent": min_accuracy,
        "reached": found.reaches(min_accuracy),
        "calibration_error": found.calibration_error,
        "classes": [
            {
                "name": own.name,
                "num_images": own.num,
                "num_right": own.num_right,
                "accuracy": own.accuracy,
                "accuracy_interval": list(own.interval),
            }
            for own in found.classes
        ],
        "confusions": [
            {"class": pair.class_name, "predicted": pair.predicted, "num_images": pair.num}
            for pair in found.confusions
        ],
        "unreadable": list(found.problems),
        "notes": list(found.notes),
    }


def in_words(own: ClassResult) -> str:
    """Return an accuracy with its interval: "82.5 % (95 % interval 68 – 91 %) of 40"."""
    low, high = own.interval
    return (
        f"{100 * own.accuracy:.1f} % (95 % interval {100 * low:.1f} – {100 * high:.1f} %) of "
        f"{own.num}"
    )


def cells(own: ClassResult) -> tuple[str, str, str]:
    """Return the cells of a class: accuracy, interval, number of images."""
    return f"{100 * own.accuracy:.1f} %", in_interval(own.interval), str(own.num)


def calibration(found: Evaluated) -> str:
    """Say how far the probabilities can be trusted."""
    sure = sum(result.probability for result in found.results) / len(found.results)
    return (
        f"error {100 * found.calibration_error:.1f} %: mean probability {100 * sure:.1f} %, "
        f"accuracy {100 * found.overall.accuracy:.1f} %"
    )
