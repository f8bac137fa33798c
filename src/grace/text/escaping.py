"""Text from strangers' files and from other libraries, made fit for one line of a terminal."""


def printable(text: str) -> str:
    """Return text with escapes for what a terminal would not show: controls, stray bytes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, which may go on for pages.

    An error without a text is called by its type.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
