"""What can be wrong with stored files."""

from typing import final


@final
class DamagedError(ValueError):
    """A file that cannot be trusted: missing, cut off, altered or forged.

    Its message is one short line, whatever of the file's content it quotes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@final
class BusyError(ValueError):
    """A file or folder that another process is changing."""


@final
class NewerFormatError(ValueError):
    """A file that a later version wrote in a format unknown here."""


def one_line(text: str, length: int = 700) -> str:
    """Return text as a terminal only shows it: escapes for what is not printable.

    Args:
        text: quotes what a stranger's file holds.
        length: characters; of longer text the middle is left out.
    """
    if len(text) > length:
        # Messages begin with the file and end with the remedy.
        text = f"{text[: length * 2 // 3]}…{text[-length // 3 :]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
