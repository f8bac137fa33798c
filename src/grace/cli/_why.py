"""Why an update ended as it did, in a sentence. Torch-free."""

from grace.configs.experiment import ExperimentSettings
from grace.configs.methods import GraceSettings, MemoSettings
from grace.learner.document import Update


def why(update: Update, settings: ExperimentSettings) -> str:
    """Say what a method decided and what decided it."""
    method = settings.method.name
    match update.outcome.verdict:
        case "base" if method == "joint":
            return "trained afresh: joint trains one network on all images"
        case "base":
            return "trained afresh: the first update makes the first backbone"
        case "grow":
            return f"grew: {_saturation(update, settings)}"
        case "compress":
            return f"compressed: {_saturation(update, settings)}"
        case "compress (budget)":
            return (
                f"compressed for the budget: {_saturation(update, settings)}, but one more "
                f"backbone would not fit into {settings.memory.max_mb:g} MB"
            )
        case "refresh":
            return "refreshed: no class is new, so the newest backbone was trained further"
        case "update":
            return f"trained further: {method} keeps to one backbone"
        case "skip":
            return f"nothing was trained: {method} waits for the last update (final_task_only)"


def _saturation(update: Update, settings: ExperimentSettings) -> str:
    """Say what the network was found to be, and what that was compared with."""
    outcome, method = update.outcome, settings.method
    if isinstance(method, GraceSettings) and method.expand_at is not None:
        grows = update.task in method.expand_at
        return f"method.expand_at {'names' if grows else 'does not name'} update {update.task}"
    if outcome.saturation is None or outcome.threshold is None:
        if outcome.verdict == "compress":
            return f"{method.name} makes one backbone of two with every update"
        what = "last stage" if isinstance(method, MemoSettings) else "backbone"
        return f"{method.name} adds a {what} with every update"
    used, threshold = _apart(outcome.saturation, outcome.threshold)
    count = update.num_backbones[0]
    which = "the backbone" if count == 1 else f"the newest of {count} backbones"
    side = "below" if outcome.saturation < outcome.threshold else "not below"
    return f"{which} uses {used} of its feature space, {side} the threshold of {threshold}"


def _apart(first: float, second: float) -> tuple[str, str]:
    """Write two shares in percent, with as many digits as show which one is larger."""
    for digits in range(4):
        texts = f"{100 * first:.{digits}f} %", f"{100 * second:.{digits}f} %"
        if texts[0] != texts[1]:
            break
    return texts
