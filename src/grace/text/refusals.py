"""What can be wrong with stored files."""

from typing import final

from grace.text.escaping import one_line


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
