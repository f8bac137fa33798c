"""What a method declares: its traits, and the base classes of its settings. Torch-free."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, final

from pydantic import Field, model_validator

from grace.base.errors import GraceError
from grace.settings.recipe import Recipe, Settings, first_task, merge, setting_text


@final
@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a method that other code may ask for, without knowing its name."""

    memory: Literal["exemplars", "all images", "none"] = "exemplars"
    """Images stored of old classes: a few of each, all of them (upper bounds only), or none."""
    grows_every_task: bool = False
    """Every later task adds a backbone; none is ever removed."""
    shares_trunk: bool = False
    """Its backbones share all layers but their last stage."""
    freezes_old_network: bool = False
    """Later tasks train beside a frozen copy of the old network."""
    compares_new_classes_only: bool = False
    """Later tasks compare new classes with each other only, so a single new class is not learnt."""
    learns_known_classes: bool = False
    """It has a rule for a later task without a new class; a method without one refuses it."""

    trains_backbone: bool = True
    """Its backbone learns; otherwise it never changes, and its features of an image are kept."""
    takes_frozen_trunk: bool = False
    """It can train the last stages of its backbones over a trunk that never changes."""

    def can_train(self, part: Literal["all", "last-stages", "frozen"]) -> bool:
        """Return True if the method can train this part of its backbones and no other."""
        if part == "last-stages":
            return self.takes_frozen_trunk
        return self.trains_backbone == (part == "all")

    def leaves_lone_class(self, number: int, num_new: int) -> bool:
        """Return True if task ``number`` has one new class and the method cannot learn it.

        The softmax over one logit is 1, so that there is neither a loss nor a gradient.
        """
        return self.compares_new_classes_only and number > 1 and num_new == 1


@final
@dataclass(frozen=True, kw_only=True)
class ThresholdRule:
    """First value and decay of the threshold of a method that compares saturations with one."""

    initial: float
    """τ₁ in [0, 1]: the network grows at this saturation or above. Lower: it grows more often."""
    decay: float
    """ρ in (0, 1]: factor on the threshold after each compression. Lower: it falls faster."""


NOT_ZERO = r"(?!0(\.0)?$).+"
"""Pattern of values for ``AnyMethodSettings.needs``."""


class AnyMethodSettings(Settings):
    """Base of the class ``Settings`` in a method's file. All its fields have defaults."""

    traits: ClassVar[Traits] = Traits()
    """Those of the method's class."""
    parameter_groups: ClassVar[frozenset[str]] = frozenset({"default"})
    """Parameter groups that the method has; ``recipe.groups`` may name these."""
    needs: ClassVar[Sequence[tuple[str, str, str]]] = ()
    """Settings (a pattern; the name of a recipe means all in it), the others that decide if they
    have an effect, with "|" between them, and the pattern of values of which one must have one."""

    name: str = ""
    """which method learns"""

    @property
    def threshold_rule(self) -> ThresholdRule | None:
        """The threshold by which the network grows; ``None`` if the method has no threshold."""
        return None

    @property
    def given_expansions(self) -> tuple[int, ...] | None:
        """The tasks at which the settings say to expand; ``None``: the method decides."""
        return None

    def without_threshold(self) -> Self | None:
        """Return settings that are equal for all runs that differ only by when they expand.

        ``None`` if the method has no threshold, or one that its verdicts do not stand for.
        """
        return None

    def idle_settings(self) -> Mapping[str, str]:
        """Return the settings that have no effect with the present others, and why."""
        idle: dict[str, str] = {}
        for pattern, others, needed in self.needs:
            values = {other: setting_text(getattr(self, other)) for other in others.split("|")}
            if not any(re.fullmatch(needed, value) for value in values.values()):
                why = " and ".join(f"method.{other} is {value}" for other, value in values.items())
                own = [name for name in type(self).model_fields if re.fullmatch(pattern, name)]
                idle = {**dict.fromkeys(own, why), **idle}
        return idle

    @model_validator(mode="before")
    @classmethod
    def _complete_recipes(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Complete partly given recipes from the defaults of their phases."""
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        for name, field in cls.model_fields.items():
            if field.annotation is Recipe and isinstance(values.get(name), dict):
                default: Recipe = field.get_default(call_default_factory=True)
                filled[name] = merge(default.model_dump(), values[name])
        return filled

    @model_validator(mode="after")
    def _groups_exist(self) -> Self:
        for name, recipe in self:
            if not isinstance(recipe, Recipe):
                continue
            unknown = recipe.groups.keys() - self.parameter_groups
            if unknown:
                raise GraceError(
                    f"{name}.groups: this method has no parameter group '{min(unknown)}': known "
                    f"are {', '.join(sorted(self.parameter_groups))}"
                )
        return self


class BaseMethodSettings(AnyMethodSettings):
    """Settings of a method whose first task trains one fresh network."""

    base: Recipe = first_task()
    """recipe of the first task"""


class PriorSettings(BaseMethodSettings):
    """Settings of a method whose cross-entropy may see unequal numbers of images of the classes."""

    class_prior: Literal["none", "balanced"] = "none"
    """none: plain cross-entropy, by which classes of few images are predicted rarely (all published
    methods but DGR); balanced: in training, the logits get + log of the class's share of the
    phase's images, so that predictions favour no class"""


class SmoothingSettings(PriorSettings):
    """Settings of a method whose cross-entropy may smooth the labels."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """ε: part of each label that all classes share. Higher: less confident predictions and less
    overfitting, and a worse fit above some value; 0: the labels as they are"""


class AligningSettings(SmoothingSettings):
    """Settings of a method that aligns the weights of new classes after training."""

    weight_alignment: bool | None = None
    """true: scale the new classes' weights to the old ones' mean length; false: leave them as
    trained. none: true without a class_prior, false with one, as both correct the same imbalance"""

    @property
    def aligns_weights(self) -> bool:
        """True if new classes' weights are aligned."""
        if self.weight_alignment is None:
            return self.class_prior == "none"
        return self.weight_alignment
