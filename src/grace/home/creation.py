"""What all versions of a learner have in common: ``model.json``. Torch-free."""

from collections.abc import Sequence
from typing import Literal, Self, final

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from grace.configs.experiment import ExperimentSettings
from grace.home.document import Mean, Shape, StandardDeviation, refuse_other_channels
from grace.text.refusals import GraceError
from grace.text.validation import first_problem


@final
class Creation(BaseModel):
    """The settings and image shape that a learner was created with."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = 1
    kind: Literal["grace learner"] = "grace learner"
    settings: ExperimentSettings
    shape: Shape
    mean: tuple[Mean, ...]
    std: tuple[StandardDeviation, ...]

    @model_validator(mode="after")
    def _has_a_number_for_each_channel(self) -> Self:
        refuse_other_channels(self.shape, self.mean, self.std)
        return self

    @classmethod
    def of(
        cls,
        settings: ExperimentSettings,
        shape: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> Self:
        """Check the settings and images of a new learner.

        Args:
            settings: the learner's settings.
            shape: (C, H, W) of its images.
            mean: normalisation constants per channel, of pixels in [0, 1].
            std: likewise.

        Raises:
            GraceError: for images larger than 1024 pixels, or unusable constants.
        """
        given = {"shape": tuple(shape), "mean": tuple(mean), "std": tuple(std)}
        try:
            return cls.model_validate({"settings": settings, **given})
        except ValidationError as error:
            raise GraceError(f"no learner can be made: {first_problem(error)}") from None
