"""Continue an interrupted run: find its record, compare the rounding, remove its leftovers."""

import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from grace.base.atomic import remove
from grace.base.errors import BusyError, GraceError, GraceWarning
from grace.base.files import inside
from grace.base.lock import exclusive
from grace.runs.model import RunInfo, RunRecord
from grace.runs.reading import find_same_run, read_record

STATE = "state.safetensors"
"""As ``grace.methods.saved.FILE``, which imports torch."""


def same_run(directory: Path | None, info: RunInfo) -> RunRecord | None:
    """Return the record of the same run that an earlier process began; ``None``: there is none.

    Args:
        directory: of the run; ``None``: the newest of the same run under ``runs/``.
        info: facts about the run here.

    Raises:
        GraceError: if the directory holds another run.
    """
    if directory is None:
        return find_same_run(Path("runs"), info)
    if not (directory / "run.json").exists():
        return None
    record = read_record(directory)
    if record.info.fingerprints.get("run") != info.fingerprints["run"]:
        then, now = record.info.versions, info.versions
        other = [name for name in now if then.get(name) != now[name]]
        if other:
            made = ", ".join(f"{name} {then.get(name)} (here {now[name]})" for name in other)
            raise GraceError(
                f"{directory} holds a run made with other versions, {made}",
                "install those to go on with it, or choose another directory",
            )
        raise GraceError(
            f"{directory} holds a run with other settings or data",
            "choose another directory, or give the settings it began with",
        )
    return record


def noted_rounding(info: RunInfo, before: RunInfo) -> RunInfo:
    """Warn of a run that goes on under other rounding, and note it in its record.

    Args:
        info: facts about the run here.
        before: facts about the interrupted run; earlier versions recorded fewer.

    Returns:
        ``info`` with the notes of both.
    """
    then, now = _rounding(before), _rounding(info)
    changed = [
        f"{name} {now.get(name)} (before: {then[name]})"
        for name in then
        if then[name] != now.get(name)
    ]
    notes = [*info.notes, *before.notes]
    if changed:
        note = f"the run went on with {', '.join(changed)}: its last digits may differ"
        warnings.warn(note, GraceWarning, stacklevel=2)
        notes.append(note)
    return info.model_copy(update={"notes": tuple(dict.fromkeys(notes))})


def _rounding(info: RunInfo) -> Mapping[str, object]:
    """Return what the last digits of a run depend on, beside its fingerprint, as far as known."""
    engine = info.config.get("engine")
    layout = engine if isinstance(engine, dict) else {}
    known = {
        **{name: info.hardware.get(name) for name in ("cpu", "gpu", "threads", "processes")},
        **{name: layout.get(name) for name in ("channels_last", "compile")},
    }
    return {name: value for name, value in known.items() if value is not None}


def tidy(directory: Path) -> None:
    """Remove what the process of a finished run left if it was killed at its very end.

    A process that still has the run locked removes it itself.

    Args:
        directory: of the run.

    Raises:
        OSError: if something cannot be removed.
    """
    if (directory / "lock").exists():
        with suppress(BusyError), exclusive(directory / "lock", f"the run '{directory}'"):
            drop_checkpoint(inside(directory, "checkpoint"))
            (directory / "lock").unlink()


def drop_checkpoint(checkpoint: Path) -> None:
    """Remove the state of a run, which nobody needs after the run's end."""
    # This file is removed first: without it the run begins anew.
    remove(checkpoint / STATE)
    shutil.rmtree(checkpoint, ignore_errors=True)
