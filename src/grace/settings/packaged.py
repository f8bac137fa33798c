"""Find and read the YAML files of experiments and studies: packaged ones and those of users."""

import os
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, final

from grace.base.errors import GraceError
from grace.base.words import did_you_mean
from grace.settings import yaml_text
from grace.settings.setting_problems import MOST_PROBLEMS, Problem

Kind = Literal["experiment", "study"]

_FOLDERS = {"experiment": "experiments", "study": "studies"}
_LISTED_BY = {"experiment": "grace list experiments", "study": "grace study"}


@final
class ConfigError(GraceError):
    """All problems of an experiment's settings, in one line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} settings are wrong: " if len(problems) > 1 else ""
        lines = list(map(str, problems[:MOST_PROBLEMS]))
        more = ["and others"] if len(problems) > MOST_PROBLEMS else []
        super().__init__(count + "; ".join([*lines, *more]))


def packaged(kind: Kind) -> list[str]:
    """List the names of the packaged files of a kind, sorted."""
    names = [entry.name for entry in _folder(kind).iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def is_path(name: str) -> bool:
    """Return ``True`` if a name is the path of a user's file."""
    return name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


def find(kind: Kind, name: str, folder: Path) -> tuple[Traversable, str]:
    """Find a packaged file by its name, or a user's by its path.

    Args:
        kind: what the file describes.
        name: a packaged name, or a path.
        folder: folder that a relative path starts from.

    Returns:
        The file, and a text that is equal for equal files.

    Raises:
        ConfigError: if no packaged file has this name.
    """
    if is_path(name):
        path = folder / Path(name).expanduser()
        return path, os.path.realpath(path)
    names = packaged(kind)
    if name not in names:
        raise ConfigError(
            [
                f"no packaged {kind} '{name}'{did_you_mean(name, names)} "
                f"('{_LISTED_BY[kind]}' shows them; a file is given as a path ending in .yaml)"
            ]
        )
    return _folder(kind) / f"{name}.yaml", name


def read_mapping(kind: Kind, source: Traversable, where: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Args:
        kind: what the file describes, for messages.
        source: the file.
        where: its name in messages.

    Raises:
        ConfigError: if it cannot be read, or holds something else.
    """
    try:
        if isinstance(source, Path):
            layer = yaml_text.read(source, where)
        else:
            layer = yaml_text.parse(source.read_text(encoding="utf-8"), where)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigError([f"{kind} file '{where}': {reason.lower()}"]) from error
    except GraceError as error:
        raise ConfigError([str(error)]) from error
    if not isinstance(layer, dict) or not all(isinstance(key, str) for key in layer):
        raise ConfigError([f"{where}: should hold settings, one 'key: value' per line"])
    return layer


def _folder(kind: Kind) -> Traversable:
    return files("grace.settings") / _FOLDERS[kind]
