"""The decision of Assess and its decaying threshold (the paper's Eq. 4)."""

from dataclasses import dataclass, replace
from typing import Literal, final

Verdict = Literal["grow", "compress"]


@final
@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The threshold: the network grows at this saturation or above, and compresses below it.

    It is τ₁·ρ^k after k compressions in a row.

    Args:
        initial: τ₁ in [0, 1]. Lower: more expansions, more backbones.
        decay: ρ in (0, 1]. Lower: an expansion comes after fewer compressions.
        compressions: k, compressions since the last expansion.
    """

    initial: float
    decay: float
    compressions: int = 0

    @property
    def value(self) -> float:
        """τ_t = τ₁·ρ^k."""
        return self.initial * self.decay**self.compressions

    def verdict(self, saturation: float) -> Verdict:
        """Return "compress" if the saturation is strictly below the threshold, else "grow"."""
        return "compress" if saturation < self.value else "grow"

    def after(self, verdict: Verdict) -> "Threshold":
        """Return τ_{t+1}: decayed by ρ after a compression, reset to τ₁ after an expansion."""
        return replace(self, compressions=self.compressions + 1 if verdict == "compress" else 0)
