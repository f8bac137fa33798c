"""The values that GRACE saves beside its tensors, and the threshold that follows from them."""

from typing import Annotated, final

from pydantic import Field
from typing_extensions import override

from grace.methods.state import StateValues
from grace.nn.threshold import Threshold
from grace.settings.methods import GraceSettings


@final
class GraceValues(StateValues):
    """What GRACE remembers of its decisions and backbones."""

    compressions: int = Field(0, ge=0)
    """Number of compressions since the last expansion."""
    class_counts: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """For each backbone, the number of classes that it was trained to represent."""
    previous_saturation: float | None = Field(None, ge=0, le=1)
    first_saturation: float | None = Field(None, ge=0, le=1)
    """Of the mergeable backbone's first assessment, if later ones are compared with it."""

    @override
    def problem(self, num_backbones: int, num_classes: int) -> str | None:
        is_sound = len(self.class_counts) == num_backbones
        return None if is_sound else "does not count the classes of every backbone"

    def threshold(self, settings: GraceSettings) -> Threshold:
        """Return the threshold τ of the next decision."""
        initial, relative = settings.threshold, settings.relative_threshold
        if relative is not None:
            first = self.first_saturation
            # The first assessment has nothing to be compared with.
            initial = 1.0 if first is None else min(1.0, relative * first)
        decay, compressions = settings.threshold_decay, self.compressions
        return Threshold(initial=initial, decay=decay, compressions=compressions)

    def decided(self, settings: GraceSettings, saturation: float, *, has_grown: bool) -> None:
        """Remember a decision.

        Args:
            settings: say whether later saturations are compared with the first.
            saturation: of the mergeable backbone.
            has_grown: the mergeable backbone became fixed; otherwise it was compressed.
        """
        after = self.threshold(settings).after("grow" if has_grown else "compress")
        self.compressions = after.compressions
        if has_grown:
            self.first_saturation = None
        elif settings.relative_threshold is not None and self.first_saturation is None:
            self.first_saturation = saturation

    def reason(self, settings: GraceSettings) -> str:
        """Return why the next decision is no comparison; an empty text if it is one."""
        if settings.relative_threshold is None or self.first_saturation is not None:
            return ""
        return "later saturations will be compared with the first one of this backbone"
