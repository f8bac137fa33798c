"""Make text from strangers' files and other libraries safe for one line of a terminal."""

import unicodedata

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


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, which may have many lines.

    If the error has no text, return the name of its type.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
    if len(text) > length:
        # Messages begin with the file and end with the remedy.
        text = f"{text[: length * 2 // 3]}…{text[-length // 3 :]}"
    return printable(text)
