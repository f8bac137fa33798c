"""Settings of the probe: a head on the features of a backbone that never changes."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import AnyMethodSettings
from grace.settings.recipe import Recipe
from grace.settings.traits import Traits


class ProbeSettings(AnyMethodSettings):
    """A frozen backbone whose features are computed once, and a head that learns from them."""

    summary = "a frozen, pre-trained backbone; only a head learns, from features computed once"
    implementation = "grace.methods.probe:Probe"
    traits = Traits(learns_known_classes=True, trains_backbone=False)

    name: Literal["probe"] = "probe"
    head: Literal["linear", "nearest_mean"] = Field(
        "linear",
        description="linear: logistic regression on the features of new images and exemplars; "
        "nearest_mean: the nearest of the classes' mean features, which needs no exemplars and "
        "depends neither on the order of the classes nor on the updates",
    )
    update: Recipe = Field(
        default_factory=lambda: Recipe(
            epochs=60,
            batch_size=64,
            lr=0.001,
            optimiser="adamw",
            weight_decay=0.3,
            schedule="cosine",
        ),
        description="recipe of the linear head, in every task",
    )
    class_prior: Literal["none", "balanced"] = Field(
        "balanced",
        description="none: plain cross-entropy, by which classes of few images are predicted "
        "rarely; balanced: in training, the logits get + log of the class's share of the images, "
        "so that predictions favour no class",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        if self.head == "linear":
            return {}
        return dict.fromkeys(("update", "class_prior"), "method.head=nearest_mean trains nothing")
