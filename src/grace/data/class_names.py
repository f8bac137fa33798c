"""Names of classes: which are allowed, which are equal, which look alike."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from grace.base.escaping import JOINERS, is_shown, one_line
from grace.base.refusals import GraceError


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


def similar_names(
    names: Sequence[str], known: Sequence[str] = (), cutoff: float = 0.85
) -> Iterator[tuple[str, str]]:
    """Find names that look like a known name or like each other.

    Two names do if they differ only in case, separators or an English plural, or if difflib's
    ratio, 2·(matching letters) / (all letters), exceeds ``cutoff``. Names whose digits differ do
    not: "class_12" is not a misspelt "class_13".

    Args:
        names: names to compare, all different.
        known: existing names; a name in both lists is not compared with itself.
        cutoff: ratio in [0, 1]. Higher: fewer pairs.

    Yields:
        A name, and the known or earlier name that it resembles.
    """
    others = [name for name in known if name not in set(names)]
    every = [*others, *names]
    folded = [_folded(name) for name in every]
    digits = [re.findall(r"\d+", text) for text in folded]
    # difflib analyses only the second sequence, so the second one is kept in the inner loop.
    matcher = SequenceMatcher(autojunk=False)
    for later in range(len(others), len(every)):
        text = folded[later]
        matcher.set_seq2(text)
        for earlier in range(later):
            if digits[earlier] == digits[later] and _is_like(
                folded[earlier], text, matcher, cutoff
            ):
                yield every[later], every[earlier]


def _is_like(other: str, text: str, matcher: SequenceMatcher[str], cutoff: float) -> bool:
    """Compare two folded names; the matcher has ``text`` as its second sequence."""
    if other == text or _is_plural(other, text) or _is_plural(text, other):
        return True
    # No ratio exceeds that of a short name that is wholly within a long one.
    if 2 * min(len(other), len(text)) <= cutoff * (len(other) + len(text)):
        return False
    matcher.set_seq1(other)
    return matcher.quick_ratio() > cutoff and matcher.ratio() > cutoff


def _folded(name: str) -> str:
    """Return a name without case and separators."""
    text = spelling(name)
    return re.sub(r"[\s_.-]", "", text) or text


def _is_plural(many: str, one: str) -> bool:
    return many in (one + "s", one + "es") or (one.endswith("y") and many == one[:-1] + "ies")
