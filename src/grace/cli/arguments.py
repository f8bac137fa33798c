"""Positional arguments shared by ``run``, ``show`` and ``compare``."""

from collections.abc import Sequence
from pathlib import Path

from grace.base.errors import GraceError


def split(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Split ``[EXPERIMENT] [KEY=VALUE…]``; the default experiment is "digits".

    Raises:
        GraceError: if two experiments are named.
    """
    # The path of a file may hold a "=" too.
    words = [text for text in arguments if "=" not in text or _is_file(text)]
    if len(words) > 1:
        raise GraceError(
            f"'{words[1]}' is no setting: after the experiment '{words[0]}' write KEY=VALUE"
        )
    return words[0] if words else "digits", [text for text in arguments if text not in words]


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) and Path(text).is_file()
