"""Names of classes: which are allowed, and which are equal."""

import re
import unicodedata
from collections.abc import Sequence

from grace.base.errors import GraceError
from grace.base.words import JOINERS, is_shown, one_line


def class_name(text: str) -> str:
    """Return a class's name in Unicode's composed form (NFC), if it is allowed.

    Args:
        text: a name that a user wrote, or the name of a folder.

    Raises:
        GraceError: if it is blank, has a character that a terminal does not show (controls, line
            breaks, bytes that are not UTF-8), or has more than 255 bytes, the limit of a folder.
    """
    # Composing takes time that grows with the square of the length, and shortens a name to a third
    # at most.
    name = text if len(text) > 3 * 255 else unicodedata.normalize("NFC", text)
    if not name.strip():
        reason = "is blank"
    elif not all(is_shown(c, before) for before, c in zip(" " + name, name, strict=False)):
        reason = "has a control character, a line break or bytes that are not UTF-8"
    elif (num_bytes := len(name.encode())) > 255:
        reason = f"has {num_bytes} bytes, more than 255"
    else:
        return name
    shown = one_line(name, 255)
    raise GraceError(f"'{shown}' {reason}", "rename its folder", where="the class name")


def spelling(name: str) -> str:
    """Return a form that is equal for names that differ only in case or Unicode spelling.

    Spaces of all kinds are equal, and joiners are left out: people see little or nothing of them.
    """
    if not name.isascii():
        name = re.sub(f"[{JOINERS}]", "", re.sub(r"[^\S\n]", " ", name))
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def twins(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of names that differ only in case or in how Unicode spells them."""
    spelled: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for name in names:
        key = spelling(name)
        if key in spelled:
            found.append((spelled[key], name))
        spelled.setdefault(key, name)
    return found
