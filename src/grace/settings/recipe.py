"""The base of every settings model, and recipes: optimiser and learning rate of a phase."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import override

from grace.base.errors import GraceError


class Settings(BaseModel):
    """Base of all settings: frozen. The text below a field is its meaning, range and symbol."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @override
    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())

    @model_validator(mode="before")
    @classmethod
    def _as_read(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Take lists for tuples, and the word "none" where a setting can be ``None``."""
        if not isinstance(values, dict):
            return values
        return {
            key: None if value == "none" and _can_be_none(cls, key) else _as_tuples(value)
            for key, value in values.items()
        }


def _as_tuples(value: Any) -> Any:  # noqa: ANN401 - whatever was read
    """Return the value with tuples for its lists: strict models take no list for a tuple."""
    if isinstance(value, dict):
        return {key: _as_tuples(inner) for key, inner in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _can_be_none(kind: type[Settings], name: str) -> bool:
    """Return ``True`` for a field that holds ``None`` but no text."""
    field = kind.model_fields.get(name)
    members = get_args(field.annotation) if field else ()
    return type(None) in members and str not in members


Share = Annotated[float, Field(ge=0, lt=1)]


def setting_text(value: object) -> str:
    """Return the value of a setting as people type it, to six digits."""
    value = float(f"{value:.6g}") if isinstance(value, float) else value
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


class Group(Settings):
    """Values of one parameter group that differ from the rest of the recipe."""

    lr_factor: float = Field(1.0, ge=0)
    """factor on the learning rate. Lower: the group learns more slowly; 0: it does not change"""
    weight_decay: float | None = Field(None, ge=0)
    """weight decay of the group. Higher: smaller weights; none: the recipe's"""


class Recipe(Settings):
    """Optimiser and learning-rate schedule of one phase.

    The rate changes at the end of an epoch: with a milestone of 60, epochs 0 to 59 run at the first
    rate. ``cosine`` falls from ``lr`` to ``min_lr`` over ``epochs``. Warm-up replaces the first
    rates of any schedule; later rates do not change.
    """

    epochs: int = Field(ge=1, le=1_000_000)
    """passes over the phase's images. More: longer training and a closer fit"""
    batch_size: int = Field(128, ge=1)
    """images per step; the last batch may be smaller. More: fewer steps, smoother gradients, more
    memory"""
    lr: float = Field(0.1, gt=0)
    """learning rate at the start. Higher: faster, and unstable above some value"""
    momentum: float = Field(0.9, ge=0, lt=1)
    """momentum of sgd, not Nesterov; adam has none. Higher: smoother and longer steps"""
    weight_decay: float = Field(2e-4, ge=0)
    """L2 penalty on every parameter, batch norm and biases included. Higher: smaller weights, less
    overfitting"""
    schedule: Literal["multistep", "cosine", "constant"] = "multistep"
    """how the learning rate falls: in steps, as a cosine, or not at all"""
    milestones: tuple[int, ...] = ()
    """epochs after which a multistep schedule multiplies the learning rate by decay. Later: more
    epochs at a high rate"""
    decay: float = Field(0.1, gt=0, le=1)
    """factor at each milestone. Lower: smaller rates after it; 1: no change"""

    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    """sgd: with momentum; adam: with weight_decay as an L2 penalty; adamw: shrinks weights apart
    from the gradient"""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Adam's decay of the mean gradient and of the mean squared gradient. Closer to 1: longer
    averages"""
    min_lr: float = Field(0.0, ge=0)
    """learning rate at the end of a cosine schedule. Higher: the last epochs change more"""
    warmup_epochs: int = Field(0, ge=0)
    """epochs in which the rate rises linearly from warmup_lr to lr. More: a slower start; 0: no
    warm-up"""
    warmup_lr: float = Field(0.0, ge=0)
    """learning rate of the first epoch of warm-up. Lower: a slower start"""
    clip_norm: float | None = Field(None, gt=0)
    """longest gradient of all parameters together; a longer one is scaled down to it. Lower:
    smaller steps after outliers; none: no limit"""
    decays_vectors: bool = True
    """true: weight decay acts on biases and batch norm too; false: on weights of layers only"""
    drop_last: bool = False
    """true: skip the last batch of an epoch if it is smaller than the others"""
    average_epochs: int = Field(0, ge=0)
    """at the end of the phase, trained weights become the mean of those after each of this many
    last epochs (stochastic weight averaging). More: less noise of single steps, but weights of a
    higher learning rate enter; 0 and 1: the last weights"""
    groups: dict[str, Group] = Field({})
    """groups of parameters with values of their own, by the names that the method gives them"""

    @model_validator(mode="after")
    def _values_fit_each_other(self) -> Self:
        steps, last = list(self.milestones), self.epochs - 1
        is_cosine, has_steps = self.schedule == "cosine", self.schedule == "multistep"
        is_within = not steps or 0 < min(steps) <= max(steps) <= last
        for is_wrong, what in (
            (self.min_lr > self.lr, f"min_lr {self.min_lr:g} exceeds lr {self.lr:g}: lower it"),
            (self.min_lr and not is_cosine, "min_lr needs schedule 'cosine': remove it"),
            (self.warmup_lr and not self.warmup_epochs, "warmup_lr needs warmup_epochs: set them"),
            (self.warmup_epochs > last, f"warmup_epochs must be fewer than epochs {self.epochs}"),
            (self.average_epochs > last + 1, f"average_epochs exceeds epochs {self.epochs}"),
            (steps and not has_steps, f"milestones {steps} need schedule 'multistep': remove them"),
            (steps != sorted(set(steps)), f"milestones {steps} must increase"),
            (not is_within, f"milestones {steps} must lie between 1 and epochs - 1 ({last})"),
        ):
            if is_wrong:
                raise GraceError(what)
        return self


def multistep(epochs: int, *milestones: int, weight_decay: float = 2e-4) -> Recipe:
    """Make a recipe with lr 0.1, divided by ten at each milestone (an epoch)."""
    return Recipe(epochs=epochs, milestones=milestones, weight_decay=weight_decay)


def first_task() -> Recipe:
    """Make the first task's recipe of most methods (200 epochs, weight decay 5e-4)."""
    return multistep(200, 60, 120, 170, weight_decay=5e-4)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``above`` over ``below``: mappings merge key by key, other values are replaced.

    Milestones belong to a multistep schedule and its number of epochs: another schedule drops them,
    another number of epochs scales them. ``min_lr`` belongs to the cosine schedule. What is wrong
    stays as it is, for the validation.
    """
    merged = dict(below)
    if above.get("schedule", "cosine") != "cosine":
        merged.pop("min_lr", None)
    if above.get("schedule", "multistep") != "multistep":
        merged.pop("milestones", None)
    elif isinstance(epochs := above.get("epochs"), int):
        with suppress(KeyError, TypeError, ValueError, ArithmeticError):
            moved = {round(place / below["epochs"] * epochs) for place in below["milestones"]}
            merged["milestones"] = sorted(place for place in moved if 0 < place < epochs)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(under, value) if both else value  # type: ignore[arg-type]
    return merged
