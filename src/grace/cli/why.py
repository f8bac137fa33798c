"""Explain the verdict of an update in one sentence. Imports no torch."""

from grace.base.words import printable
from grace.learner.document import UpdateRecord
from grace.settings.experiment import ExperimentSettings

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
    """Return what the method decided and why.

    Older saved learners hold no reason; then it is derived from the verdict and the saturation.
    """
    verdict = update.outcome.verdict
    reason = printable(update.outcome.reason) or _guessed(update)
    if verdict == "compress (budget)":
        limit = settings.memory.max_mb
        ceiling = "its ceiling" if limit is None else f"{limit:g} MB"
        full = f"one more backbone would not fit into {ceiling}"
        reason = f"{reason}, but {full}" if reason else full
    return f"{_DONE[verdict]}: {reason}"


def _guessed(update: UpdateRecord) -> str:
    """Derive a reason from the verdict and the recorded saturation."""
    measured = _saturation(update)
    match update.outcome.verdict:
        case "start" if update.task == 1:
            return "the first update makes the first backbone"
        case "start":
            return "a new network learns from all images"
        case "grow":
            return measured or "every update adds a backbone"
        case "compress":
            return measured or "every update makes one backbone of two"
        case "compress (budget)":
            return measured
        case "refresh":
            return "no class is new, so the newest backbone was trained further"
        case "train":
            return "the number of backbones stays"
        case "skip":
            return "a later update trains"


def _saturation(update: UpdateRecord) -> str:
    """Compare the recorded saturation with the threshold in words; empty if one is unknown."""
    outcome = update.outcome
    if outcome.saturation is None or outcome.threshold is None:
        return ""
    used, threshold = _apart(outcome.saturation, outcome.threshold)
    count = update.num_backbones[0]
    which = "the backbone" if count == 1 else f"the newest of {count} backbones"
    side = "below" if outcome.saturation < outcome.threshold else "not below"
    return f"{which} uses {used} of its feature space, {side} the threshold of {threshold}"


def _apart(first: float, second: float) -> tuple[str, str]:
    """Write two shares in percent with enough digits to show which one is larger."""
    for digits in range(4):
        texts = f"{100 * first:.{digits}f} %", f"{100 * second:.{digits}f} %"
        if texts[0] != texts[1]:
            break
    return texts
