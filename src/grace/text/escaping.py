"""Make text from strangers' files and other libraries safe for one line of a terminal."""


def printable(text: str) -> str:
    """Return text with escapes for characters that a terminal does not print."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


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
