"""Aligned columns of text, for a terminal and a file alike."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from grace.base.words import printable


def widest(texts: Iterable[str]) -> int:
    """Return the width of the widest text, in columns of the terminal."""
    return max(map(cell_len, texts), default=0)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Pad a text with spaces.

    Args:
        text: text without line breaks.
        width: columns of the terminal to fill.
        right: put the spaces before the text.
    """
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def aligned(rows: Sequence[Sequence[str]], right: str = "", gap: int = 2) -> list[str]:
    """Align rows of cells.

    Args:
        rows: cells of each row, equally many.
        right: one character per column: ">" aligns it to the right, anything else to the left.
        gap: spaces between columns.
    """
    # Escaped before they are measured.
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [widest(column) for column in zip(*shown, strict=True)]
    sides = right.ljust(len(widths), "<")[: len(widths)]
    return [
        (" " * gap)
        .join(
            padded(cell, width, right=side == ">")
            for cell, width, side in zip(row, widths, sides, strict=True)
        )
        .rstrip()
        for row in shown
    ]
