"""Escape text for the documents that people open: Markdown, LaTeX, spreadsheets."""

import re

from grace.base.escaping import printable

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


def code_block(text: str, language: str = "") -> str:
    """Return a fenced block of Markdown; no text can end it early.

    Args:
        text: the content, on one line or several.
        language: name of the language for highlighting.
    """
    lines = [printable(line) for line in text.split("\n")]
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


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
