"""What a new learner does with pre-trained weights where the call leaves it open. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Any

from grace.base.errors import GraceError
from grace.settings.experiment import ExperimentSettings
from grace.settings.recipe import Recipe

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
