"""Properties that a method declares about itself. Imports no torch, for fast lists."""

from dataclasses import dataclass
from typing import Literal, final


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
