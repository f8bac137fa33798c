"""The speed of this machine in a learner's settings: time budgets are planned with it."""

from collections.abc import Sequence

from grace.configs.experiment import ExperimentSettings
from grace.learner.budget import is_scalable, measure_speed, rounded_speed
from grace.learner.model import Model


def with_speed(
    settings: ExperimentSettings,
    shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
) -> ExperimentSettings:
    """Measure this machine's speed and add it to the settings, if their budget needs it.

    Args:
        settings: of the learner.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel.
        std: likewise.
    """
    budget = settings.budget
    if budget.speed is not None or not is_scalable(settings.method, budget):
        return settings
    model = Model(settings, shape, mean, std)
    speed = rounded_speed(measure_speed(model.state.method, model.trainer, shape))
    return settings.model_copy(update={"budget": budget.model_copy(update={"speed": speed})})
