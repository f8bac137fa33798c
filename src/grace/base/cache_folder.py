"""The user's cache folder: files that are made again if they are deleted."""

import os
from pathlib import Path


def cache_folder(name: str = "") -> Path:
    """Return grace's folder in the user's cache, or a folder in it; it may not exist.

    On every system it is ``~/.cache/grace``, or ``$XDG_CACHE_HOME/grace`` where that is set.

    Args:
        name: of the folder in it; an absolute path is returned as it is.

    Raises:
        RuntimeError: if the user has no home folder.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The standard says that a relative path is to be ignored.
    caches = given if given.is_absolute() else Path("~/.cache").expanduser()
    return caches / "grace" / name
