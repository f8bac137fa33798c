"""The base of every settings model: frozen, typed, keyword-only, no unknown keys."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen settings whose fields state meaning, range and the paper's symbol."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
