"""What can be wrong with stored files."""

from typing import final


@final
class DamagedError(ValueError):
    """A file that cannot be trusted: missing, cut off, altered or forged."""


@final
class BusyError(ValueError):
    """A file or folder that another process is changing."""


@final
class NewerFormatError(ValueError):
    """A file that a later version wrote in a format unknown here."""
