"""What the settings of every method have, and what they tell of their method."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from grace.configs.recipe import Recipe, completed, first_task
from grace.configs.settings_model import Settings
from grace.configs.traits import ThresholdRule, Traits
from grace.text.refusals import GraceError


class AnyMethodSettings(Settings):
    """What the settings of every method have.

    A concrete model gives ``name`` as ``Literal["<name>"] = "<name>"``, and a value to each of the
    class variables. All its settings have defaults.
    """

    summary: ClassVar[str]
    """The line that ``grace list`` shows."""
    implementation: ClassVar[str]
    """Where the method's class is, as ``"package.module:Class"``; imported when it is needed."""
    traits: ClassVar[Traits] = Traits()
    """What other rooms may ask of the method."""
    parameter_groups: ClassVar[frozenset[str]] = frozenset({"default"})
    """Groups that the method puts its parts into: ``recipe.groups`` may speak of these."""

    name: str

    @property
    def threshold_rule(self) -> ThresholdRule | None:
        """The threshold that decides whether the network grows, or none if there is no such one."""
        return None

    def idle_settings(self) -> Mapping[str, str]:
        """Map the settings that have no effect beside the others to the reason.

        The name of a recipe stands for all settings in it.
        """
        return {}

    @model_validator(mode="before")
    @classmethod
    def _complete_recipes(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Fill what a partly given recipe leaves out from that phase's own default."""
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        for name, field in cls.model_fields.items():
            if field.annotation is Recipe and isinstance(values.get(name), dict):
                default: Recipe = field.get_default(call_default_factory=True)
                filled[name] = completed(values[name], default)
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

    base: Recipe = Field(default_factory=first_task, description="recipe of the first task")
