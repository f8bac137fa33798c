"""Watch folders for new image files, by looking again and again. Imports no torch."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from grace.data.folder_tree import files_below


@final
class Watcher:
    """Finds the image files that appear in folders.

    A file is given once, when two looks in a row have found it with the same size and time: a
    program that writes it may not have finished before. A file that changes later is given again.

    Args:
        folders: to look into, with all folders below them.
        known: files that were dealt with already, as they are now.
    """

    def __init__(self, folders: Sequence[Path], known: Iterable[Path] = ()) -> None:
        self._folders = folders
        self._given = {path: _state(path) for path in known}
        self._last: dict[Path, tuple[int, int] | None] = {}

    def look(self) -> list[Path]:
        """Return the files that are new and complete, sorted by folder and name."""
        present: dict[Path, tuple[int, int] | None] = {}
        for folder in self._folders:
            # A folder may be absent for a while.
            with suppress(OSError):
                present |= {path: _state(path) for path in files_below(folder).images}
        ready = [
            path
            for path, state in present.items()
            if state is not None and state == self._last.get(path) != self._given.get(path)
        ]
        self._last = present
        self._given |= {path: present[path] for path in ready}
        return ready


def _state(path: Path) -> tuple[int, int] | None:
    """Return size and time of change of a file; ``None`` if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
