"""The base of every settings model: frozen, typed, keyword-only, no unknown keys."""

from functools import cache
from typing import Any, ClassVar, final, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_validator,
)
from pydantic.functional_serializers import model_serializer
from typing_extensions import override


@final
class _Complete:
    """Context value of a dump that includes every field."""


class Settings(BaseModel):
    """Base of all settings: frozen; each field states meaning, range and the paper's symbol."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    _later: ClassVar[frozenset[str]] = frozenset()
    """Names of fields that an earlier version did not have.

    A dump leaves them out while they have their default, so that it equals the earlier version's
    dump byte for byte and fingerprints and saved learners do not change. A subclass adds its names
    to those of its base classes.
    """

    @override
    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        unknown = cls._later - cls.model_fields.keys()
        assert not unknown, f"{cls.__name__} has no fields {sorted(unknown)}"

    def complete_dump(self) -> dict[str, Any]:
        """Return all settings as JSON values, including those that ``model_dump`` leaves out."""
        return self.model_dump(mode="json", context=_Complete)

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Read the word "none", as the descriptions write it, where a setting can be ``None``."""
        if not isinstance(values, dict):
            return values
        return {
            key: None if value == "none" and _can_be_none(cls, key) else value
            for key, value in values.items()
        }

    @model_serializer(mode="wrap")
    def _without_unused_later(
        self, dump: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        if info.context is _Complete:
            return values
        for name in _later_names(type(self)):
            if getattr(self, name) == _default(type(self), name):
                values.pop(name, None)
        for name in values.keys() & type(self).model_fields.keys():
            values[name] = self._with_departures(name, values[name])
        return values

    def _with_departures(self, name: str, dumped: Any) -> Any:  # noqa: ANN401 - any setting
        """Add left-out settings of a section, if reading would fill in other values.

        A partly given section is completed from this model's default for the section, which may
        differ from the default of the section's own model.
        """
        section, usual = getattr(self, name), _default(type(self), name)
        if not isinstance(section, Settings) or type(section) is not type(usual):
            return dumped
        kind = type(section)
        departs = [later for later in _later_names(kind) if later not in dumped]
        departs = [later for later in departs if getattr(usual, later) != _default(kind, later)]
        return dumped | {later: getattr(section, later) for later in departs}


def _can_be_none(kind: type[Settings], name: str) -> bool:
    """Return ``True`` for a field that holds ``None`` but no text."""
    field = kind.model_fields.get(name)
    members = get_args(field.annotation) if field else ()
    return type(None) in members and str not in members


@cache
def _later_names(kind: type[Settings]) -> list[str]:
    """Names added later to a model, in the order of its fields."""
    named = frozenset[str]().union(*(vars(base).get("_later", ()) for base in kind.__mro__))
    return [name for name in kind.model_fields if name in named]


@cache
def _default(kind: type[Settings], name: str) -> Any:  # noqa: ANN401 - any setting
    # It is compared and never changed, so that one serves all.
    return kind.model_fields[name].get_default(call_default_factory=True, validated_data={})
