"""Text from strangers' files and names, made safe to print on one line of a terminal."""


def printable(text: str) -> str:
    """Return text with escapes for what a terminal would not show: controls, stray bytes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: str, length: int = 700) -> str:
    """Return text as a terminal only shows it: escapes for what is not printable.

    Args:
        text: quotes what a stranger's file holds.
        length: characters; of longer text the middle is left out.
    """
    if len(text) > length:
        # Messages begin with the file and end with the remedy.
        text = f"{text[: length * 2 // 3]}…{text[-length // 3 :]}"
    return printable(text)
