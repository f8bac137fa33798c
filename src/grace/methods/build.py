"""Build a method with its trainer from the settings: where a run and a learner begin."""

from collections.abc import Sequence

from grace.base.errors import GraceError
from grace.data.augmentation import build_augmentation
from grace.data.memory import ExemplarMemory
from grace.engine.progress import Progress
from grace.engine.ranks import Ranks
from grace.engine.trainer import Trainer
from grace.methods.method import Method
from grace.methods.module_factory import ModuleFactory
from grace.methods.preprocessing import enlargement
from grace.settings.augmentation import crops_at_random
from grace.settings.experiment import ExperimentSettings
from grace.settings.registry import resolve

MAX_SIDE = 1024
"""The most pixels of an image's side."""


def build(
    settings: ExperimentSettings,
    shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    *,
    is_saved: bool = False,
) -> tuple[Trainer, Method]:
    """Build the trainer and the method, which knows nothing yet.

    Args:
        settings: method, backbone, memory, augmentation, seeds, engine.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel, of pixels in [0, 1].
        std: likewise.
        progress: receives the events of the work.
        ranks: the processes that train together; ``None``: this process alone.
        is_saved: a saved state will be restored: the backbone is not tried out before.

    Raises:
        GraceError: for settings that do not fit the images or this machine.
    """
    if max(shape[1:]) > MAX_SIDE:
        raise GraceError(
            f"images of {shape[2]}×{shape[1]} pixels are larger than {MAX_SIDE}×{MAX_SIDE}",
            "set data.image_size",
        )
    if crops_at_random(settings.data.augmentation) and shape[1] != shape[2]:
        raise GraceError(
            f"data.augmentation={settings.data.augmentation} crops squares, but the images are "
            f"{shape[2]}×{shape[1]} pixels",
            "set data.image_size",
        )
    enlarge = enlargement(settings.backbone, shape)
    augmentation = build_augmentation(
        settings.data.augmentation, tuple(mean), tuple(std), shape[1], enlarge
    )
    trainer = Trainer(settings.engine, augmentation, settings.seeds.data, progress, ranks)
    factory = ModuleFactory(settings, shape[0], trainer.device)
    if not is_saved:
        factory.refuse_unfit_backbone(shape)
    keeps_all = settings.method.traits.memory == "all images"
    memory = ExemplarMemory(settings.memory, keep_all=keeps_all)
    made: type[Method] = resolve("method", settings.method.name)
    return trainer, made(settings.method, factory, memory)
