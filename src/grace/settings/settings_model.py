"""The base of every settings model: frozen, typed, keyword-only, no unknown keys."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import override


class Settings(BaseModel):
    """Base of all settings: frozen. The text below a field is its meaning, range and symbol."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @override
    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())

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


def _can_be_none(kind: type[Settings], name: str) -> bool:
    """Return ``True`` for a field that holds ``None`` but no text."""
    field = kind.model_fields.get(name)
    members = get_args(field.annotation) if field else ()
    return type(None) in members and str not in members
