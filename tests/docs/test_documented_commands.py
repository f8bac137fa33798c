"""Commands, settings and imports that the pages name exist."""

import re
import shlex
import warnings
from pathlib import Path

import pytest
import typer

from grace.cli.app import VERBS as KNOWN
from grace.cli.app import app
from grace.cli.options import split
from grace.runs.record import read_record
from grace.settings.load import load_experiment
from grace.settings.registry import METHODS
from grace.studies.plan import Plan, Selection
from grace.studies.schema import StudySettings

ROOT = Path(__file__).parents[2]
VERBS = "|".join(KNOWN)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    found = [
        (page.relative_to(ROOT).as_posix(), match[0].strip())
        for page in PAGES
        for block in blocks(page, "bash")
        for match in re.finditer(
            rf"(?<![\w/])grace ({VERBS})\b(?:[^;&\n\x22]|\x22[^\x22\n]*\x22)*", block
        )
    ]
    assert len(found) > 20
    return list(dict.fromkeys(found))


def test_the_home_page_lists_every_command() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [verb for verb in KNOWN if f"`grace {verb} " not in page] == []


@pytest.mark.parametrize(("page", "command"), commands())
def test_every_command_is_understood(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for archive in ("xeon-records", "study-records"):
        Path(archive).mkdir()  # The pages say how to unpack them.
    words = shlex.split(command.partition(" > ")[0].replace("$seed", "1"), comments=True)[1:]
    group = typer.main.get_command(app)
    with group.make_context("grace", words) as context:
        name, verb, rest = group.resolve_command(context, words)  # type: ignore[attr-defined]
        parsed = verb.make_context(name, rest, parent=context).params
    arguments = parsed.get("arguments") or []
    if name == "compare":
        experiment, overrides = split(arguments)
        scales = {"all": {"protocols": {"p": experiment}}}
        rows = {method: {"method": method} for method in METHODS}
        study = StudySettings.model_validate({"scales": scales, "rows": rows})
        Plan(study, Selection(overrides=tuple(overrides)))
        return
    if name not in ("run", "show") or "method=aligned" in arguments:
        return  # the worked example's method is not registered here
    if arguments and arguments[0].startswith("./"):
        own = tmp_path / "own.yaml"
        own.write_text("parent: digits\n")
        arguments = [str(own), *arguments[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_experiment(*split(arguments))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=str)
def test_every_import_is_there(page: Path) -> None:
    names: dict[str, object] = {}
    lines = [line for block in blocks(page, "python") for line in block.splitlines()]
    for line in lines:
        if line.startswith(("from grace", "import grace")) and "Aligned" not in line:
            exec(line, names)  # noqa: S102 - a line of our own pages
    assert lines


def test_the_run_on_images_from_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(ROOT / "README.md", "python")
    exec(block, {"__name__": "readme"})  # noqa: S102 - of our own page
    (directory,) = (tmp_path / "runs" / "digits").iterdir()
    record = read_record(directory)
    assert (record.info.dataset.name, record.info.dataset.num_train) == ("greys", 80)
    assert record.info.task_sizes == (2, 2)
    shown = capsys.readouterr().out
    assert shown == f"runs/digits/{directory.name} {record.last} {record.task_aware_last}\n"
