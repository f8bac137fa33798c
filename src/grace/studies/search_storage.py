"""Where Optuna keeps the choices of a search: a journal in a folder, or a database."""

import json
import secrets
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from grace.base.errors import DamagedError, GraceError, GraceWarning
from grace.base.files import inside, read_small

MAX_BYTES = 64 * 2**20
"""A journal takes about 1 kB for a pair."""


def imported_optuna() -> Any:  # noqa: ANN401 - an optional module
    """Return Optuna, which prints warnings only.

    Raises:
        GraceError: if it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise GraceError("--search needs optuna", "pip install 'grace-cil[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@final
class SearchStorage:
    """Optuna's studies by title. Each minimises a first value and maximises a second one.

    Args:
        storage: Optuna's storage.
    """

    def __init__(self, storage: Any) -> None:  # noqa: ANN401 - an optional module
        self._optuna = imported_optuna()
        self._storage = storage

    def study(self, title: str) -> Any:  # noqa: ANN401
        """Return a study; a new one is empty."""
        return self._optuna.create_study(
            storage=self._storage,
            study_name=title,
            directions=["minimize", "maximize"],
            load_if_exists=True,
        )

    def made_anew(self, title: str) -> Any:  # noqa: ANN401
        """Delete a study; return an empty one."""
        self._optuna.delete_study(study_name=title, storage=self._storage)
        return self.study(title)


@contextmanager
def refused_by_database() -> Iterator[None]:
    """Turn errors of a database into the user's; their texts may quote its URL and password.

    Raises:
        GraceError: for such an error.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, imported_optuna().exceptions.StorageInternalError) as error:
        cause = error.__cause__ or error
        if _is_damaged(cause):
            what = "--storage: the database is damaged"
            remedy = "move it away, and call the command again: the records make a new one"
        else:
            what = f"--storage: the database failed ({type(cause).__name__})"
            remedy = "call the command again when it answers: what is recorded is not lost"
        raise GraceError(what, remedy) from None


def open_storage(url: str, folder: Path) -> SearchStorage:
    """Open a storage.

    A journal that cannot be read is set aside under another name, and an empty one is begun.

    Args:
        url: of a database; empty: the journal ``search.journal`` of the folder.
        folder: folder of the search, in which no other process writes.

    Raises:
        GraceError: if the database cannot be used.

    Warns:
        GraceWarning: if a journal is set aside.
    """
    optuna = imported_optuna()
    if url:
        try:
            return SearchStorage(optuna.storages.RDBStorage(url))
        except Exception as error:  # Of the database's own driver, or a missing one.
            raise _unusable(url, error) from None
    journal = inside(folder, "search.journal")
    # Left by a killed process: nobody else writes here, and Optuna could wait for it for ever.
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if not _is_whole(journal):
        _set_aside(journal)
    try:
        return SearchStorage(_journal(optuna, journal))
    except Exception:  # What its lines say may be anything.
        _set_aside(journal)
        return SearchStorage(_journal(optuna, journal))


def _unusable(url: str, error: Exception) -> GraceError:
    """Return what is wrong with a database that cannot be opened.

    The text of the error is not quoted: it may hold the URL with its password.
    """
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    what = f"--storage: the database cannot be used ({type(error).__name__})"
    if isinstance(error, ImportError):
        return GraceError(what, "install the Python driver of this database")
    if isinstance(error, ArgumentError | NoSuchModuleError):
        return GraceError(what, "write a URL of SQLAlchemy, such as postgresql://user@host/name")
    file = _file_of(url)
    if file is None:
        return GraceError(what, "see that it runs, and that host, user and name are right")
    if not file.parent.exists():
        return GraceError(
            f"--storage: the folder '{file.parent}' does not exist",
            "create it, or correct the path",
        )
    if file.is_dir():
        return GraceError(f"--storage: '{file}' is a folder", "write the path of a file in it")
    if _is_damaged(error):
        return GraceError(
            f"--storage: '{file}' is no database, or a damaged one",
            "move it away (a new one is made from the records), or write another path",
        )
    return GraceError(
        f"--storage: '{file}' cannot be used ({type(error).__name__})",
        "see that this file and its folder may be written, and that grace or Optuna wrote it",
    )


def _file_of(url: str) -> Path | None:
    """Return the file of a database of SQLite; ``None`` for others."""
    from sqlalchemy.engine import make_url

    parts = make_url(url)
    name = parts.database or ""
    if parts.get_backend_name() != "sqlite" or not name or name.startswith((":", "file:")):
        return None
    return Path(name)


def _is_damaged(error: BaseException) -> bool:
    """Return True if SQLite says that a file is no database, or a damaged one."""
    # Its own errors of other kinds, such as a lock that is held, are subclasses.
    return type(getattr(error, "orig", error)) is sqlite3.DatabaseError


def _journal(optuna: Any, path: Path) -> Any:  # noqa: ANN401
    storages = optuna.storages
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return storages.JournalStorage(storages.journal.JournalFileBackend(str(path)))


def _is_whole(journal: Path) -> bool:
    """Return False for a journal whose last line was cut off, or that is no journal.

    Optuna would open a cut line, write behind it, and never open it again.
    """
    if not journal.exists():
        return True
    try:
        data = read_small(journal, f"'{journal}'", MAX_BYTES)
        lines = [json.loads(line) for line in data.splitlines()]
    except (DamagedError, ValueError, RecursionError):
        return False
    return (not data or data.endswith(b"\n")) and all(isinstance(line, dict) for line in lines)


def _set_aside(journal: Path) -> None:
    aside = journal.with_name(f"{journal.name}.broken-{secrets.token_hex(4)}")
    journal.rename(aside)
    warnings.warn(
        f"'{journal}' is damaged or no journal: set aside as '{aside.name}', and a new one is made "
        "from the records",
        GraceWarning,
        stacklevel=3,
    )
