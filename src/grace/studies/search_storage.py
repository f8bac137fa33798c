"""Where Optuna keeps the choices of a search: a journal in a folder, or a database."""

import json
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from grace.storage.inside import inside
from grace.storage.reading import read_small
from grace.text.refusals import DamagedError, GraceError

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
        raise GraceError(
            f"--storage: the database failed ({type(error.__cause__ or error).__name__})",
            "call the command again when it answers: what is recorded is not lost",
        ) from None


def open_storage(url: str, folder: Path) -> SearchStorage:
    """Open a storage.

    A journal that cannot be read is set aside under another name, and an empty one is begun.

    Args:
        url: of a database; empty: the journal ``search.journal`` of the folder.
        folder: folder of the search, in which no other process writes.

    Raises:
        GraceError: if the database cannot be used.
    """
    optuna = imported_optuna()
    if url:
        try:
            return SearchStorage(optuna.storages.RDBStorage(url))
        except Exception as error:  # Of the database's own driver, or a missing one.
            # Not its text, which may quote the URL with its password.
            raise GraceError(
                f"--storage: the database cannot be used ({type(error).__name__})",
                "install the Python driver of this database"
                if isinstance(error, ImportError)
                else "write a URL of SQLAlchemy, such as postgresql://user@host/name",
            ) from None
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
    journal.rename(journal.with_name(f"{journal.name}.broken-{secrets.token_hex(4)}"))
