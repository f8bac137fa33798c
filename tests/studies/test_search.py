"""Optuna looks for pairs of threshold and decay; records stay the truth."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grace.base.errors import GraceError
from grace.runs import RunRecord
from grace.settings.study import StudySettings
from grace.studies.replay import replay
from grace.studies.search import KEYS, RANGES, Pair, Search, SearchSettings
from grace.studies.study_cells import RunSpec, Selection, StudyCell
from support.synthetic_records import MakeRecord

optuna = pytest.importorskip("optuna", reason="the search extra is not installed")
SATURATIONS = (0.7, 0.62, 0.6, 0.66)
STUDY = StudySettings.model_validate(
    {
        "name": "grid",
        "scales": {"small": {"protocols": {"p": {"experiment": "digits"}}, "seeds": [1, 2]}},
        "rows": {
            "pairs": {"method": "grace", "grid": dict(zip(KEYS, ([0.5, 0.7], [0.9]), strict=True))}
        },
        "claims": [
            {"id": "P1", "kind": "fewer-points"},
            {"id": "P2", "kind": "never-rises", "setting": KEYS[0]},
            {"id": "P3", "kind": "on-front", "left": "0.5/0.9"},
            {"id": "P4", "kind": "on-front", "left": "0.7/0.9"},
        ],
    }
)


class Runs:
    """Stands for the runs of a study: a run is finished when it is asked to be."""

    def __init__(self, make_record: MakeRecord) -> None:
        self._records = {seed: make_record("grace", seed) for seed in (1, 2)}
        self.finished: dict[RunSpec, RunRecord] = {}
        self.failed: set[RunSpec] = set()

    def finish(self, cells: Sequence[StudyCell]) -> None:
        for cell in cells:
            threshold, decay = pair_of(cell)
            verdicts = replay(SATURATIONS, threshold, decay)
            record = self._records[cell.seed]
            task = record.tasks[-1]
            changed = task.model_copy(update={"backbones": 1 + verdicts.count("grow")})
            self.finished[cell.run] = replace(record, tasks=(*record.tasks[:-1], changed))

    def means(self, cells: Sequence[StudyCell]) -> list[float]:
        records = [self.finished[cell.run] for cell in cells]
        both = [(record.tasks[-1].backbones, record.average) for record in records]
        return [fmean(values) for values in zip(*both, strict=True)]

    def advance(self, search: Search, room: int = 4) -> list[StudyCell]:
        pairs = [tuple(map(float, run_pair(run))) for run in self.finished]
        return search.advance(self.finished.get, self.failed.__contains__, pairs, room)


def run_pair(run: RunSpec) -> list[str]:
    values = dict(text.split("=", 1) for text in run.overrides)
    return [values[key] for key in KEYS]


def pair_of(cell: StudyCell) -> Pair:
    threshold, decay = map(float, run_pair(cell.run))
    assert cell.row == f"{threshold:g}/{decay:g}"
    return threshold, decay


def search(folder: Path, count: int = 6, storage: str = "") -> Search:
    return Search(STUDY, Selection(), SearchSettings(count, storage), folder)


def carried_out(runs: Runs, found: Search) -> list[Pair]:
    """Finish everything that is chosen; return the pairs in this order."""
    chosen: list[Pair] = []
    while cells := runs.advance(found):
        runs.finish(cells)
        chosen += dict.fromkeys(map(pair_of, cells))
    return chosen


@pytest.fixture
def runs(make_record: MakeRecord) -> Runs:
    return Runs(make_record)


def trials(folder: Path) -> list[Any]:
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / "search.journal"))
    )
    [summary] = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage).trials


def test_optuna_chooses_as_many_pairs_as_are_asked_for(runs: Runs, tmp_path: Path) -> None:
    found = search(tmp_path)
    cells = runs.advance(found, room=1)
    assert [cell.seed for cell in cells] == [1, 2]  # One pair, both seeds.
    assert runs.advance(found, room=0) == []
    runs.finish(cells)
    chosen = [pair_of(cells[0]), *carried_out(runs, found)]
    assert len(set(chosen)) == 6
    for pair in chosen:
        assert all(low <= value <= high for value, (low, high) in zip(pair, RANGES, strict=True))
    told = trials(tmp_path)
    assert [trial.state.name for trial in told] == ["COMPLETE"] * 6
    assert told[0].values == runs.means(cells)
    assert [cell.row for cell in found.cells[::2]] == [f"{a:g}/{b:g}" for a, b in chosen]


def test_the_study_of_a_search_has_a_row_for_each_pair(runs: Runs, tmp_path: Path) -> None:
    found = search(tmp_path, 2)
    runs.finish(
        [cell for cell in study_grid(found) if pair_of(cell) == (0.7, 0.9)]
    )  # A pair of the grid is finished.
    chosen = carried_out(runs, found)
    assert chosen[0] == (0.7, 0.9)
    assert len(chosen) == 3
    made = found.study
    assert made.name == "grid-search"
    assert [made.grid_rows(row) for row in made.rows] == [
        {f"{a:g}/{b:g}": (f"{KEYS[0]}={a!r}", f"{KEYS[1]}={b!r}")} for a, b in chosen
    ]
    # The other pair of the grid is not known, and one pair is no line.
    assert [claim.id for claim in made.claims] == ["P1", "P4"]


def study_grid(found: Search) -> list[StudyCell]:
    from grace.studies.search import _cells

    return [cell for pair in found._grid for cell in _cells(found._templates["p"], pair)]


def test_the_same_call_goes_on(runs: Runs, tmp_path: Path) -> None:
    cells = runs.advance(search(tmp_path))  # Two pairs are chosen, and the process is killed.
    assert len(cells) == 4
    runs.finish(cells[:2])
    found = search(tmp_path)
    again = runs.advance(found)
    assert again[:4] == cells
    runs.finish(again)
    carried_out(runs, found)
    assert len({cell.row for cell in found.cells}) == 6
    assert len(trials(tmp_path)) == 6
    assert runs.advance(search(tmp_path)) == found.cells  # All of them are known.


def test_a_pair_that_was_replayed_stays_chosen(runs: Runs, tmp_path: Path) -> None:
    """It has no record of its own, so that no list of recorded pairs names it."""
    before = search(tmp_path)
    carried_out(runs, before)
    again = search(tmp_path)
    found = again.advance(runs.finished.get, runs.failed.__contains__, [], 4)
    assert [cell.row for cell in found] == [cell.row for cell in before.cells]
    assert len(trials(tmp_path)) == 6


@pytest.mark.parametrize("damage", ["cut", "noise", "lines", "lies", "gone", "folder", "link"])
def test_a_damaged_journal_is_made_anew_from_the_records(
    runs: Runs, tmp_path: Path, damage: str
) -> None:
    before = search(tmp_path)
    carried_out(runs, before)
    journal = tmp_path / "search.journal"
    text = journal.read_text()
    if damage == "cut":
        journal.write_text(text[:-20])
    elif damage == "noise":
        journal.write_bytes(b"\xff\x00" * 100)
    elif damage == "lines":
        journal.write_text('{"op_code": 99}\n{"op_code": 4, "worker_id": 1}\n')
    elif damage == "lies":
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            if line.get("values"):
                line["values"][1] += 1.0
        journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    elif damage == "gone":
        journal.unlink()
    elif damage == "folder":
        journal.unlink()
        journal.mkdir()
    else:
        (tmp_path / "elsewhere").write_text(text)
        journal.unlink()
        journal.symlink_to(tmp_path / "elsewhere")
    if damage == "link":
        with pytest.raises(GraceError, match="links are not followed"):
            search(tmp_path)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = search(tmp_path)
    told = [str(warning.message) for warning in caught]
    if damage in {"cut", "noise", "lines", "folder"}:
        [aside] = tmp_path.glob("search.journal.broken-*")
        assert told == [
            f"'{journal}' is damaged or no journal: set aside as '{aside.name}', and a new one is "
            "made from the records"
        ]
    else:
        assert told == []
    assert {cell.row for cell in runs.advance(found)} == {cell.row for cell in before.cells}
    values = sorted(trial.values for trial in trials(tmp_path))
    cells = before.cells
    assert values == sorted(runs.means(cells[place : place + 2]) for place in range(0, 12, 2))


def test_a_pair_that_failed_is_no_point_and_is_not_tried_again_in_this_call(
    runs: Runs, tmp_path: Path
) -> None:
    found = search(tmp_path, 2)
    cells = runs.advance(found)
    runs.failed.add(cells[0].run)
    runs.finish(cells[2:])
    assert runs.advance(found) == []
    assert [trial.state.name for trial in trials(tmp_path)] == ["FAIL", "COMPLETE"]


def test_a_database_by_its_url(runs: Runs, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'pairs.db'}"
    found = search(tmp_path, 3, url)
    carried_out(runs, found)
    assert not (tmp_path / "search.journal").exists()
    [summary] = optuna.get_all_study_summaries(url)
    assert summary.n_trials == 3
    with pytest.raises(GraceError, match="the database cannot be used") as caught:
        search(tmp_path, 3, "postgresql+nothing://me:secret@host/name")
    assert "secret" not in str(caught.value)
    assert "write a URL of SQLAlchemy" in str(caught.value)


def test_a_file_that_is_no_database_is_named_with_what_helps(tmp_path: Path) -> None:
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"garbage" * 3000)
    said = {
        tmp_path / "none" / "x.db": f"the folder '{tmp_path}/none' does not exist: create it, or",
        tmp_path: f"'{tmp_path}' is a folder: write the path of a file in it",
        noise: f"'{noise}' is no database, or a damaged one: move it away (a new one is made from",
    }
    for place, text in said.items():
        with pytest.raises(GraceError) as caught:
            search(tmp_path, 3, f"sqlite:///{place}")
        assert str(caught.value).startswith(f"--storage: {text}")
    assert noise.read_bytes() == b"garbage" * 3000


def test_a_database_that_is_damaged_later_says_so(runs: Runs, tmp_path: Path) -> None:
    place = tmp_path / "pairs.db"
    found = search(tmp_path, 3, f"sqlite:///{place}")
    place.write_bytes(b"garbage" * 3000)
    with pytest.raises(GraceError, match="database is damaged: move it away, and call"):
        runs.advance(found)


def test_a_database_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(url: str) -> None:
        raise OSError(url)

    monkeypatch.setattr(optuna.storages, "RDBStorage", refused)
    with pytest.raises(GraceError, match=r"cannot be used \(OSError\): see that it runs") as caught:
        search(tmp_path, 3, "postgresql://me:secret@host/name")
    assert "secret" not in str(caught.value)


def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(url: str) -> None:
        raise ImportError(url)

    monkeypatch.setattr(optuna.storages, "RDBStorage", no_driver)
    with pytest.raises(GraceError, match="install the Python driver of this database"):
        search(tmp_path, 3, "postgresql://me:secret@host/name")


def test_two_folders_share_a_database(runs: Runs, tmp_path: Path) -> None:
    """Neither drops what the other one chose, of which it may have no records."""
    url = f"sqlite:///{tmp_path / 'pairs.db'}"
    for name in ("mine", "other"):
        carried_out(runs, search(tmp_path / name, 3, url))
    assert [summary.n_trials for summary in optuna.get_all_study_summaries(url)] == [3, 3]


def test_a_database_that_fails_later_is_an_error_of_the_user(runs: Runs, tmp_path: Path) -> None:
    place = tmp_path / "pairs.db"
    search(tmp_path, 3, f"sqlite:///{place}")  # It has tables now.
    found = search(tmp_path, 3, f"sqlite:///file:{place}?mode=ro&uri=true")
    with pytest.raises(GraceError, match=r"the database failed \(OperationalError\): call the"):
        runs.advance(found)


def test_a_lock_that_a_killed_process_left_is_not_waited_for(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "search.journal.lock").symlink_to("studies/search.journal")
    carried_out(runs, search(tmp_path, 1))
    assert list(tmp_path.glob("search.journal*")) == [tmp_path / "search.journal"]


def test_a_study_without_such_a_grid_is_refused(tmp_path: Path) -> None:
    study = STUDY.model_copy(
        update={"rows": {"der": STUDY.rows["pairs"].model_copy(update={"grid": None})}}
    )
    with pytest.raises(GraceError, match="has no grid of"):
        Search(study, Selection(), SearchSettings(2), tmp_path)
