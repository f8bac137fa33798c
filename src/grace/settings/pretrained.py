"""What a new learner does with pre-trained weights where the call leaves it open. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from grace.base.errors import GraceError
from grace.settings.experiment import ExperimentSettings
from grace.settings.recipe import Recipe

Train = Literal["all", "last-stages", "frozen"]
FULL_RATE = 0.1
"""Factor on the learning rates if all of a pre-trained backbone trains."""
_FROZEN = "probe"


def with_weights(given: Mapping[str, Any]) -> Sequence[str]:
    """Return overrides that come before those of a call which gives weights, or freezes a backbone.

    A learner with pre-trained weights and no word on what trains freezes its backbone: that takes
    seconds, forgets nothing, and needs the fewest images.

    Args:
        given: value of each dotted path that the call sets.
    """
    if given.get("backbone.weights", "none") == "none":
        return [f"method={_FROZEN}"] if given.get("backbone.train") == "frozen" else []
    found = ["backbone.input_size=model"] if _has_stated_size(given) else []
    if given.get("backbone.train", "frozen") == "frozen" and "method.name" not in given:
        found += [f"method={_FROZEN}", "backbone.train=frozen"]
    return found


def _has_stated_size(given: Mapping[str, Any]) -> bool:
    name = str(given.get("backbone.name", ""))
    return "backbone.input_size" not in given and name.startswith("timm/")


def with_lower_rates(settings: ExperimentSettings, given: Mapping[str, Any]) -> ExperimentSettings:
    """Lower the learning rates that the call leaves open, if it trains a backbone with weights.

    Args:
        settings: of a new learner.
        given: value of each dotted path that the call sets.
    """
    method = settings.method
    if settings.backbone.weights == "none" or not method.traits.trains_backbone:
        return settings
    lower = {
        name: recipe.model_copy(
            update={"lr": FULL_RATE * recipe.lr, "min_lr": FULL_RATE * recipe.min_lr}
        )
        for name, recipe in method
        if isinstance(recipe, Recipe) and f"method.{name}.lr" not in given
    }
    return settings.model_copy(update={"method": method.model_copy(update=lower)})


def refuse_random_features(settings: ExperimentSettings) -> None:
    """Refuse a backbone that neither learns nor has learnt anything.

    Raises:
        GraceError: naming the option that gives it weights.
    """
    if settings.backbone.weights == "none" and not settings.method.traits.trains_backbone:
        raise GraceError(
            f"method {settings.method.name} trains no backbone, and backbone.weights is none: its "
            "features would be random",
            "give backbone.weights a file of pre-trained weights",
        )


def recommended(
    num_images: int, num_classes: int, weight_bytes: int, max_mb: float | None
) -> tuple[Train, str]:
    """Return what of a pre-trained backbone should train, and why.

    A rule of thumb: few images cannot move millions of weights to a better place, and a network
    that grows needs room for a second last stage.

    Args:
        num_images: training images of the update.
        num_classes: their classes.
        weight_bytes: bytes of the weights now.
        max_mb: ceiling on the learner in megabytes; ``None``: no ceiling.
    """
    each = num_images // max(1, num_classes)
    if max_mb is not None and 2 * weight_bytes > 1e6 * max_mb:
        return "frozen", f"a second backbone would not fit into {max_mb:g} MB"
    if each < 300:
        return "frozen", f"{each} images a class are few"
    if each < 2000:
        return "last-stages", f"{each} images a class can adapt the last stages"
    return "all", f"{each} images a class can train all of it"
