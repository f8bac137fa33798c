"""Make text from strangers' files and other libraries safe for one line of a terminal."""

import unicodedata

_JOINERS = "\u200c\u200d"
"""They shape the letters of Persian and Indian languages; they do not move other text."""


def printable(text: str) -> str:
    """Return text with escapes for characters that could mislead its reader.

    These are controls, line breaks, marks that turn the direction of text, and halves of surrogate
    pairs. Letters, joiners and spaces of all languages stay.
    """
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else ascii(c)[1:-1] for c in text)


def _is_shown(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, which may have many lines.

    If the error has no text, return the name of its type.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(text: str, length: int = 700) -> str:
    """Return text shortened and with escapes for characters that are not printable.

    Args:
        text: may quote a stranger's file.
        length: number of characters; the middle of a longer text is left out.
    """
    if len(text) > length:
        # Messages begin with the file and end with the remedy.
        text = f"{text[: length * 2 // 3]}…{text[-length // 3 :]}"
    return printable(text)
