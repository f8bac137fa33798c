"""How far the update of a learner is that a process carries out now. Torch-free."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from grace.base import strict_json
from grace.base.errors import DamagedError
from grace.base.files import read_start
from grace.base.lock import holder
from grace.base.words import one_line

_MAX_HEADER = 1 << 22


@final
@dataclass(frozen=True, kw_only=True)
class RunningUpdate:
    """An update that a process carries out now, as far as its work is saved."""

    process: str
    """Its number."""
    num_saved: int = 0
    """Pieces of its work that are saved: phases and sweeps, the last one maybe in part."""
    work: str = ""
    """Name of the last of them; empty: nothing is saved yet."""
    epochs: tuple[int, int] | None = None
    """Finished and planned epochs of that phase; ``None``: it has none."""
    saved: str = ""
    """When it was saved."""


def running_update(home: Path) -> RunningUpdate | None:
    """Return the update that a process carries out in a home; ``None``: no process does.

    Args:
        home: directory of the learner.
    """
    folder = home / "pending"
    # The lock is only tried beside an update, so that asking never gets in the way of a start.
    process = holder(home / "lock") if (folder / "update.json").exists() else None
    if process is None:
        return None
    entries = sorted(folder.glob("[0-9]*.safetensors"))
    if not entries:
        return RunningUpdate(process=process)
    # A forged entry may raise any of these.
    with suppress(AttributeError, LookupError, OSError, OverflowError, TypeError, ValueError):
        entry, seconds = _entry(entries[-1]), entries[-1].lstat().st_mtime
        phase = entry["phases"][-1] if "phases" in entry else entry
        epochs = None
        if "snapshot" in entry:
            epochs = (int(entry["snapshot"]["epochs"]), int(phase["recipe"]["epochs"]))
        return RunningUpdate(
            process=process,
            num_saved=len(entries),
            work=one_line(str(entry["name"]), 80),
            epochs=epochs,
            saved=datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds"),
        )
    # Its process may just have replaced the entry.
    return RunningUpdate(process=process, num_saved=len(entries))


def _entry(path: Path) -> dict[str, Any]:
    """Read what an entry of the journal says about its work, from the file's header."""
    what, num_bytes = f"'{path}'", path.lstat().st_size
    length = int.from_bytes(read_start(path, what, num_bytes, 8), "little")
    if length > _MAX_HEADER:
        raise DamagedError(f"{what} is damaged: its header is too long")
    header = strict_json.parse(read_start(path, what, num_bytes, 8 + length)[8:], what)
    found: dict[str, Any] = strict_json.parse(header["__metadata__"]["entry"].encode(), what)
    return found
