"""Resolved settings in words, for ``grace show`` and the report."""

from dataclasses import dataclass
from typing import Any, final

from pydantic import BaseModel

from grace.configs.experiment import ExperimentSettings


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

    Values are compared with those of an experiment without a file; a method's settings with the
    defaults of that method, the published values.
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
