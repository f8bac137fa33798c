"""Make new models; measure this machine's speed, with which time budgets are planned."""

from collections.abc import Sequence

from grace.data.arrays import imagenet_constants
from grace.engine.progress import Progress
from grace.learner.budget import is_scalable, measure_speed, rounded_speed
from grace.learner.model import Model
from grace.nn.preprocessing import constants
from grace.settings.experiment import ExperimentSettings


def new_model(
    settings: ExperimentSettings,
    shape: tuple[int, int, int],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    progress: Progress | None,
) -> Model:
    """Make the model of a new learner.

    Args:
        settings: of the learner.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel; ``None``: those of the pretrained weights, else
            of ImageNet.
        std: likewise.
        progress: gets the progress of training; ``None``: it is not shown.

    Raises:
        GraceError: as in ``Learner.create``.
    """
    channels = 1 if shape[0] == 1 else 3
    means, deviations = constants(settings.backbone, channels, *imagenet_constants(channels))
    means, deviations = tuple(mean or means), tuple(std or deviations)
    settings = with_speed(settings, shape, means, deviations, progress)
    return Model(settings, shape, means, deviations, progress, chooses=True)


def with_speed(
    settings: ExperimentSettings,
    shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
    progress: Progress | None = None,
) -> ExperimentSettings:
    """Measure this machine's speed and add it to the settings, if their budget needs it.

    Args:
        settings: of the learner.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel.
        std: likewise.
        progress: gets told that this takes seconds; ``None``: it is not shown.
    """
    budget = settings.budget
    if budget.speed is not None or not is_scalable(settings.method, budget):
        return settings
    if progress is not None:
        progress.waiting("measuring this machine's speed")
    model = Model(settings, shape, mean, std)
    speed = rounded_speed(measure_speed(model.state.method, model.trainer, shape))
    return settings.model_copy(update={"budget": budget.model_copy(update={"speed": speed})})
