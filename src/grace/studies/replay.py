"""Decide from recorded saturations what other thresholds would have done. Imports no torch.

GRACE's thresholds act through their verdicts alone. So a finished run also gives the result of
every other threshold and decay that lead to the same verdicts on its saturations, task by task.
"""

from grace.nn.threshold import Threshold
from grace.runs import RunRecord


def serves(record: RunRecord, initial: float, decay: float) -> bool:
    """Return True if a run is also the run of this threshold and decay.

    Its seed and all its other settings must be those wanted; this compares verdicts only, so that
    a run whose expansions were given (``method.expand_at``) serves too. A run that is not finished
    serves nothing.
    """
    if not record.complete:
        return False
    threshold = Threshold(initial=initial, decay=decay)
    for task in record.tasks:
        # The first task and those without a new class decide nothing.
        if task.saturation is None:
            continue
        verdict = threshold.verdict(task.saturation)
        if task.verdict == "compress (budget)":
            verdict = "compress"  # There was no room to grow, whatever the threshold says.
        elif verdict != task.verdict:
            return False
        threshold = threshold.after(verdict)
    return True


def expansions(record: RunRecord) -> list[int]:
    """Return the numbers of the tasks at which a run expanded."""
    return [task.task for task in record.tasks if task.verdict == "grow"]
