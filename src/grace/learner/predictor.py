"""Which of a method's predictors a learner answers with, as it is saved. Torch-free."""

from typing import Annotated, final

from pydantic import Field

from grace.learner.gate import Share, Strict


@final
class Predictor(Strict):
    """The predictor that a learner answers with, and its calibration.

    A score z becomes ``(z − log π) / T``.
    """

    classifier: Annotated[str, Field(max_length=100, pattern=r"^[\w-]*$")] = ""
    """Name of one of the method's predictors; empty: its primary one."""
    prior: tuple[Annotated[int, Field(ge=0, le=1_000_000_000)], ...] = ()
    """Training images of each class in the last phase, whose shares are π; empty: no correction."""
    temperature: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """T: higher makes probabilities more even."""
    calibration_error: tuple[Share, Share] | None = None
    """Before and after the division by T, on the held-out images; ``None``: there were too few."""

    @property
    def words(self) -> str:
        """Name it for people: "nearest mean", "linear with prior"."""
        name = self.classifier.replace("_", " ") or "the method's own"
        return f"{name} with prior" if self.prior else name
