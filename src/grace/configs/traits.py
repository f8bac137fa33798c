"""What a method declares about itself. Torch-free, so that a list or a warning comes at once."""

from dataclasses import dataclass
from typing import Literal, final


@final
@dataclass(frozen=True, kw_only=True)
class Traits:
    """What other rooms may ask of a method without knowing its name."""

    memory: Literal["exemplars", "all images", "none"] = "exemplars"
    """What is kept of old classes: a few images each, every image (upper bounds only), nothing."""
    grows_every_task: bool = False
    """Every later task adds a backbone, with no way back."""
    shares_trunk: bool = False
    """Its backbones share all layers but their last stage."""
    freezes_old_network: bool = False
    """Later tasks train beside a frozen copy of the network as it was."""
    compares_new_classes_only: bool = False
    """Later tasks tell new classes only from each other, so that a lone new class is not learnt."""
    learns_known_classes: bool = False
    """It has a rule for a later task without a new class; a method without one refuses it."""

    def leaves_lone_class(self, number: int, num_new: int) -> bool:
        """Return whether task ``number`` has one new class, and no other that it is compared with.

        The softmax over one logit is 1: neither loss nor gradient.
        """
        return self.compares_new_classes_only and number > 1 and num_new == 1


@final
@dataclass(frozen=True, kw_only=True)
class ThresholdRule:
    """How the threshold starts and falls, of a method that compares a saturation with one."""

    initial: float
    """τ₁ in [0, 1]: the network grows when its saturation is not below the threshold."""
    decay: float
    """ρ in (0, 1]: factor on the threshold after each compression."""
