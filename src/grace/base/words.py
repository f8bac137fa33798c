"""Texts for people: escaping for terminals and documents, units, similar names."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

JOINERS = "\u180e\u200b\u200c\u200d\u2060"
"""What joins and parts letters in Persian, the languages of India, Khmer, Mongolian and emoji."""


def printable(text: str) -> str:
    """Return text with escapes for characters that could mislead its reader.

    These are controls, line breaks, marks that turn the direction of text, and halves of surrogate
    pairs. Letters and spaces of all languages stay, and joiners behind letters that need them.
    """
    if text.isprintable():
        return text
    both = zip(" " + text, text, strict=False)
    return "".join(c if is_shown(c, before) else ascii(c)[1:-1] for before, c in both)


def is_shown(char: str, before: str) -> bool:
    """Return True for a character that people may read as it is, given the one before it.

    Spaces of every width are shown, and what joins or parts letters where it follows one of a
    script outside ASCII. Controls, line breaks and marks of direction are not.
    """
    category = unicodedata.category
    if char in JOINERS:
        return not before.isascii() and category(before)[0] in "LMS"
    return char.isprintable() or category(char) == "Zs"


def in_one_line(error: BaseException | str) -> str:
    """Return another library's error with single spaces for its line breaks.

    If it has no text, return the name of its type.
    """
    return " ".join(str(error).split()) or type(error).__name__


def one_line(text: str, length: int = 700) -> str:
    """Return text shortened and with escapes for characters that are not printable.

    Args:
        text: may quote a stranger's file.
        length: number of characters; the middle of a longer text is left out.
    """
    return printable(shortened(text, length))


def quoted(text: str) -> str:
    """Return the start of a stranger's text in quotes and ASCII."""
    return ascii(text if len(text) <= 60 else f"{text[:60]}…")


def shortened(text: str, length: int) -> str:
    """Return text without the middle of a long one: it begins with the file, ends with a remedy."""
    return text if len(text) <= length else f"{text[: length * 2 // 3]}…{text[-length // 3 :]}"


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to ``word``; ``None``: no choice is similar."""
    by_folded = {choice.casefold(): choice for choice in choices}
    found = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the most similar choice, or an empty text."""
    found = nearest(word, choices)
    return f"; did you mean '{found}'?" if found else ""


def did_you_mean_one_of(word: str, choices: Iterable[str], most: int = 12) -> str:
    """Return the same and the choices themselves: ``"; did you mean 'x'? (known: x, y)"``.

    Args:
        word: what someone wrote.
        choices: what would have been right.
        most: choices to list; "…" stands for the others.
    """
    known = list(choices)
    listed = ", ".join([*known[:most], *(["…"] if len(known) > most else [])])
    return did_you_mean(word, known) + (f" (known: {listed})" if known else "")


def in_interval(ends: tuple[float, float]) -> str:
    """Return an interval of shares in whole percent: "68 – 91 %"."""
    low, high = ends
    return f"{100 * low:.0f} – {100 * high:.0f} %"


def in_bytes(value: float) -> str:
    """Return bytes in the decimal unit that leaves one to three digits: "6.4 kB"."""
    if value < 1000:
        return f"{value:.0f} B"
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    unit = next((unit for unit, size in units.items() if value / size < 999.5), "GB")
    shown = value / units[unit]
    return f"{shown:.0f} {unit}" if shown >= 99.95 else f"{shown:.1f} {unit}"


def in_count(value: float) -> str:
    """Return a count in thousands or millions, in at most six characters: "0.27 M"."""
    if value < 1e5:
        return f"{value / 1e3:.1f} k"
    digits = 2 if value < 9.995e6 else 1 if value < 99.95e6 else 0
    return f"{value / 1e6:.{digits}f} M"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 image", "2 images".

    Args:
        number: how many.
        one: the noun for one.
        many: the noun for several; empty: ``one`` with an s.
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def named_versions(numbers: Sequence[int]) -> str:
    """Return versions by their numbers: "version 3", "versions 1, 2"."""
    return f"version{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def in_seconds(value: float) -> str:
    """Return a duration: "4.2 s", "3:05 min", "2:10 h"."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes}:{seconds:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",  # LaTeX knows no Greek letters outside of formulas.
    "–": "--",
    "…": r"\dots{}",
    # After a line break these would be its optional argument or its starred form.
    **{char: f"{{{char}}}" for char in "[]*"},
    **{char: rf"\{char}" for char in "&%$#_{}"},
}


def markdown(text: str) -> str:
    """Escape text for one line of Markdown: neither markup, HTML nor a link remains."""
    line = re.sub(r"([\\|`*_<>\[\]&~$])", r"\\\1", _line(text))
    # Marks of headings, lists and underlines count at the start of a line only.
    # A negative number is none of them.
    line = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)
    return re.sub(r"^([#=]|[-+](?!\d))", r"\\\1", line)


def latex(text: str) -> str:
    """Escape text for one cell of a LaTeX table."""
    line = _line(text)
    return "".join(
        "-{}" if char + after == "--" else _LATEX.get(char, char)  # Two hyphens print as a dash.
        for char, after in zip(line, line[1:] + " ", strict=False)
    )


def spreadsheet(text: str) -> str:
    """Return text for a cell of a CSV table that a spreadsheet may open.

    A spreadsheet takes text that begins with ``= + - @`` or a tab for a formula; an apostrophe is
    put before it. Numbers are not given to this function: they stay exact.
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and text else text


def _line(text: str) -> str:
    return printable(" ".join(text.split()))
