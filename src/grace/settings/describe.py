"""List resolved settings with their meanings, for ``grace show`` and the report."""

from dataclasses import dataclass
from typing import Any, final

from pydantic import BaseModel

from grace.settings.experiment import ExperimentSettings


@final
@dataclass(frozen=True)
class SettingRow:
    """One resolved setting: dotted path, value, default or not, meaning."""

    path: str
    value: Any
    is_default: bool
    meaning: str


def describe_settings(settings: ExperimentSettings) -> list[SettingRow]:
    """List every resolved setting in the order of its model.

    ``is_default`` compares a value with the default of the settings model; for a method, that is
    the published value.
    """
    return _rows(settings, ExperimentSettings(), "")


def _rows(model: BaseModel, default: object, prefix: str) -> list[SettingRow]:
    rows: list[SettingRow] = []
    for key, field in type(model).model_fields.items():
        value = getattr(model, key)
        below = getattr(default, key, None)
        path = f"{prefix}{key}"
        if isinstance(value, BaseModel):
            same = isinstance(below, type(value))
            rows += _rows(value, below if same else type(value)(), f"{path}.")
        else:
            rows.append(SettingRow(path, value, value == below, _meaning(field.description, path)))
    return rows


def _meaning(description: str | None, path: str) -> str:
    return description or ("which method learns" if path == "method.name" else "")
