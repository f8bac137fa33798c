"""What all versions of a learner have in common: ``model.json``. Torch-free."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self, final

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from grace.base import atomic, strict_json
from grace.base.errors import DamagedError, GraceError, first_problem
from grace.base.files import read_small
from grace.base.strict_json import checked
from grace.learner.document import (
    FORMAT,
    Mean,
    Shape,
    StandardDeviation,
    check_format,
    refuse_other_channels,
)
from grace.settings.experiment import ExperimentSettings


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


def refuse_taken(path: Path) -> None:
    """Refuse a directory that holds more than an interrupted creation leaves behind.

    A directory inside another learner is refused too.

    Raises:
        GraceError: naming what it is.
    """
    for parent in path.resolve().parents:
        # Other programs write a file of this name, too.
        if (parent / "model.json").exists() and (parent / "versions").is_dir():
            raise GraceError(f"'{path}' lies in the learner '{parent}'", "choose a place outside")
    if path.exists() and (
        not path.is_dir()
        or any(
            entry.name not in ("lock", "versions") and not atomic.is_leftover(entry)
            for entry in path.iterdir()
        )
    ):
        what = "is another learner" if (path / "model.json").exists() else "is no learner"
        raise GraceError(f"'{path}' exists already and {what}", "choose another name")


def read_creation(path: Path) -> Creation:
    """Read ``model.json`` of a learner's directory.

    Raises:
        NewerFormatError: if a newer grace made it.
        DamagedError: if it is damaged.
    """
    what = f"'{path / 'model.json'}'"
    raw = strict_json.parse(read_small(path / "model.json", what, 1 << 22), what)
    if not isinstance(raw, dict):
        raise DamagedError(f"{what} is damaged: it describes no learner")
    check_format(raw.get("format"), FORMAT, what)
    return checked(Creation, raw, what)
