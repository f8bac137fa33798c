"""Array jobs of Slurm: what is submitted, and how its tasks share the runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_study import Whole, copy_without, of, study_of
from test_study import whole as whole

from grace.base.errors import BusyError, GraceError
from grace.studies import slurm
from grace.studies.pool import Job, Unwatched
from grace.studies.reservations import Reservations
from grace.studies.slurm import sbatch_options, script_of, submit
from grace.studies.study import make_study, submit_study
from grace.studies.study_cells import Selection, study_cells
from grace.studies.study_runs import StudyRuns
from support.runs_here import carry_out_here
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Slurm is not for Windows")
NASTY = "a b;touch $(echo x) 'q' \"d\" `id`\n#SBATCH --wrap=evil"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("--partition=gpu --gres=gpu:1", ["--partition=gpu", "--gres=gpu:1"]),
        ("--comment='two words; rm -rf x' -N1", ["--comment=two words; rm -rf x", "-N1"]),
    ],
)
def test_options_are_split_as_a_shell_would(text: str, words: list[str]) -> None:
    assert sbatch_options(text) == words


@pytest.mark.parametrize(
    "text",
    ["-p gpu", "gpu", "--a=1\n--b=2", "--x=\x1b[2J", "--array=1-9", "--arr=1-9", "-a1-9",
     "--wrap=ls", "--", "-", "--output=x", "'--x", "--exclusive evil.sh", "--x --=y"],
)  # fmt: skip
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(GraceError, match="--slurm"):
        sbatch_options(text)


def test_the_script_passes_every_word_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / NASTY.replace("/", "")
    folder.mkdir()
    monkeypatch.chdir(folder)
    program = tmp_path / "my python"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], os.getcwd(), os.environ['PYTHONUTF8']]))\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    (tmp_path / "script").write_text(script_of(["study", f"--out={NASTY}", "--", "-x", ""]))
    ended = subprocess.run(
        ["sh", tmp_path / "script"], cwd="/", capture_output=True, text=True, check=True
    )
    words, place, utf8 = json.loads(ended.stdout)
    assert words == ["-P", "-m", "grace", "study", f"--out={NASTY}", "--", "-x", ""]
    assert (place, utf8) == (str(folder), "1")
    assert os.listdir(folder) == []  # noqa: PTH208 - names


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that notes its words in a file, and says what the file "says" holds."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "sbatch"
    program.write_text(
        f"#!{sys.executable} -S\nimport json, pathlib, sys\nhere = pathlib.Path({str(tools)!r})\n"
        "(here / 'words').write_text(json.dumps(sys.argv[1:]))\n"
        "said = (here / 'says').read_text()\nprint(said)\nsys.exit(said.startswith('sbatch'))\n"
    )
    program.chmod(0o755)
    (tools / "says").write_text("4711;cluster")
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return tools


def test_a_job_is_submitted(tmp_path: Path, sbatch: Path) -> None:
    out = tmp_path / "all studies"
    (out / "mine").mkdir(parents=True)
    assert submit(["study", "x"], ["--time=1"], 3, out, "mine") == "4711"
    words = json.loads((sbatch / "words").read_text())
    assert words[-2:] == ["--time=1", str(out / "mine" / "slurm.sh")]
    assert "--array=1-3" in words
    assert f"--output={out}/logs/slurm-%A-%a.txt" in words
    for said in ("sbatch: error: invalid partition", "hello", ""):
        (sbatch / "says").write_text(said)
        with pytest.raises(GraceError, match=r"sbatch refused: .*fewer tasks by --jobs"):
            submit(["study", "x"], [], 3, out, "mine")
        assert not any((out / "mine").iterdir())
    with pytest.raises(GraceError, match="in its name"):
        submit(["study", "x"], [], 3, tmp_path / "100%", "mine")


def test_without_slurm_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GraceError, match="there is no sbatch here"):
        submit(["study", "x"], [], 1, tmp_path, "mine")
    assert not any((tmp_path / "mine").iterdir())


def test_as_many_tasks_as_runs_or_fewer(whole: Whole, tmp_path: Path, sbatch: Path) -> None:
    study, arguments = study_of(tmp_path), {"arguments": ["study", "x"], "options": []}
    out = copy_without(whole, tmp_path / "all")
    assert submit_study(study, Selection(), out, **arguments) == ("", 0)
    out = copy_without(whole, tmp_path, "der", "replay")
    assert submit_study(study, Selection(), out, **arguments) == ("4711", 2)
    assert submit_study(study, Selection(), out, most_tasks=1, **arguments) == ("4711", 1)
    assert slurm.script_of(["study", "x"]) == (out / "mine" / "slurm.sh").read_text()


def test_tasks_share_the_runs(whole: Whole, tmp_path: Path) -> None:
    """Two tasks in one process: their locks are as strange to each other as those of two."""
    out, study = tmp_path / "studies", study_of(tmp_path)
    for name in ("runs", "cells", "logs"):
        (out / name).mkdir(parents=True)
    shutil.copytree(whole[0] / "first-tasks", out / "first-tasks")
    cells = study_cells(study, Selection())
    one, two = (
        StudyRuns(cells, out, (), Unwatched(), Reservations(out, "7"), seconds=0) for _ in range(2)
    )

    def record(name: str) -> None:
        shutil.copytree(whole[0] / "runs" / name, out / "runs" / name)

    der = one.take([])
    first = two.take([])
    assert [der.cell.label, first.cell.label] == ["der tiny s1", "IFL tiny s1"]
    plain = one.take([der])
    assert plain.cell.label == "replay tiny s1 needs 1"
    assert two.take([first]) is None  # Pairs of the grid wait for IFL, which may stand for them.
    assert not two.is_over
    one.ended(plain, "no room")
    assert two.take([first]) is None  # It failed in this array job.
    record(first.log.stem)
    two.ended(first, None)
    held = two.take([])
    assert held.cell.label == "-FL tiny s1"
    last = one.take([der])
    assert last.cell.label == "1/0.9 tiny s1"
    for job in (held, last):
        record(job.log.stem)
    two.ended(held, None)
    one.ended(last, None)
    # der is made elsewhere, and the aligned replay waits for a run that failed.
    assert two.take([]) is None
    record(der.log.stem)
    one.ended(der, None)
    assert (one.take([]), two.take([])) == (None, None)
    assert one.is_over
    assert two.is_over
    two.name_missing()
    assert two.failures == {
        "replay tiny s1 needs 1": "no room",
        "replay tiny s1": "it needs replay tiny s1 needs 1",
    }
    assert [path.suffix for path in (out / "taken").iterdir()] == [".failed"]
    # Another array job tries it again.
    again = StudyRuns(cells, out, (), Unwatched(), Reservations(out, "8")).take([])
    assert again.cell.label == plain.cell.label


def test_the_last_task_writes_the_tables(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, study = copy_without(whole, tmp_path), study_of(tmp_path)
    table = out / "mine" / "table.md"
    table.unlink()
    monkeypatch.setattr("grace.studies.study.carry_out", carry_out_here)
    monkeypatch.setattr("grace.studies.study._WAIT", 1.0)
    from grace.base.lock import exclusive, shared

    with shared(out / "lock", "another task"):
        make_study(study, Selection(), out, Unwatched(), array="7")
        assert not table.exists()
        with pytest.raises(BusyError):
            make_study(study, Selection(), out, Unwatched())
    with exclusive(out / "lock", "the whole"), pytest.raises(BusyError):
        make_study(study, Selection(), out, Unwatched(), array="7")
    make_study(study, Selection(), out, Unwatched(), array="7")
    assert table.exists()


def test_what_another_task_has_just_made_is_seen_at_once(whole: Whole, tmp_path: Path) -> None:
    """Its last look was long ago: what waits for the run may start, and nothing is given up."""
    out, study = copy_without(whole, tmp_path, "der", "IFL", "-FL"), study_of(tmp_path)
    cells = study_cells(study, Selection())
    one, two = (
        StudyRuns(cells, out, (), Unwatched(), Reservations(out, "7"), seconds=1000)
        for _ in range(2)
    )
    der, first = one.take([]), two.take([])
    assert (der.cell.label, first.cell.label) == ("der tiny s1", "IFL tiny s1")
    shutil.copytree(whole[0] / "runs" / first.log.stem, out / "runs" / first.log.stem)
    two.ended(first, None)
    held = one.take([der])
    assert held.cell.label == "-FL tiny s1"
    one.ended(held, "no room")
    one.ended(der, "no room")
    assert two.take([]) is None
    assert set(two.failures) == {"der tiny s1", "-FL tiny s1"}


def test_pairs_of_a_grid_use_all_machines(
    tmp_path: Path, tiny_backbones: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of one seed may stand for each other, but no machine waits for that."""
    out = tmp_path / "studies"
    for name in ("runs", "cells", "logs"):
        (out / name).mkdir(parents=True)
    monkeypatch.setattr(Job, "may_start", lambda *_: True)  # Their first task is trained.
    cells = study_cells(study_of(tmp_path), Selection(rows=("pairs",), seeds=(1, 2)))
    tasks = [StudyRuns(cells, out, (), Unwatched(), Reservations(out, "7")) for _ in range(2)]
    seen: list[str] = []
    for task, at_once in zip(tasks, (3, 1), strict=True):
        task.share("cpu", at_once)
        own: list[Job] = []
        while len(own) < at_once and (job := task.take(own)) is not None:
            own.append(job)
        seen += [job.cell.label for job in own]
    assert seen == ["0.01/0.9 tiny s1", "1/0.9 tiny s1", "0.01/0.9 tiny s2", "1/0.9 tiny s2"]


def test_the_tables_show_what_others_made_at_the_end(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, study = copy_without(whole, tmp_path, "der"), study_of(tmp_path)
    name = of(whole[1], "der").record.directory.name

    def made_elsewhere(*_: object, **__: object) -> None:
        shutil.copytree(whole[0] / "runs" / name, out / "runs" / name)

    monkeypatch.setattr("grace.studies.study.carry_out", made_elsewhere)
    made = make_study(study, Selection(), out, Unwatched(), array="7")
    assert len(made.found) == len(whole[1].found)
    assert (out / "mine" / "table.md").read_text() == (whole[0] / "mine" / "table.md").read_text()
