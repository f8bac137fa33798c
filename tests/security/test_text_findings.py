"""What an attacker found in text, settings and clocks: each test fails without its remedy."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import grace.cli
from grace.base.errors import GraceError, GraceWarning
from grace.engine.journal import Journal
from grace.engine.launch import Launch
from grace.methods.finetune import Finetune
from grace.runs.run import run as run_experiment
from grace.settings.experiment import EngineSettings, ScenarioSettings
from support.commands import call
from support.synthetic_records import MakeRecord
from support.tiny_streams import dataset, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones


class TestTerminal:
    def test_nothing_is_printed_past_the_console(self) -> None:
        found: list[str] = []
        for path in Path(grace.cli.__file__).parent.glob("*.py"):
            if path.name == "console.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    if called in {
                        "print", "typer.echo", "typer.secho", "typer.confirm", "typer.prompt",
                        "Console", "Text", "Text.from_markup", "traceback.print_exc",
                        "sys.stdout.write", "sys.stderr.write",
                    }:  # fmt: skip
                        found.append(f"{path.name}: {called}")
        assert found == []

    def test_a_left_out_record_cannot_colour_the_terminal(
        self, make_record: MakeRecord, tmp_path: Path
    ) -> None:
        make_record("der", 1)
        bad = make_record("grace", 2).directory
        odd = bad.with_name("\x1b[2J\u202ebad\n")
        bad.rename(odd)
        (odd / "run.json").write_text("{")
        result = call("report", tmp_path / "runs", "--table", "csv")
        assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
        assert result.stderr.rstrip("\n").isprintable()

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--\x1b[31m"],
            ["\x1b[31m"],
            ["list", "--\x1b[31m"],
            ["list", "methods", "\x1b[31m"],
            ["predict", "m", "i", "--top", "\x1b[31m"],
            ["predict", "m", "i", "--false-alarms", "\u202e\udcff"],
        ],
    )
    def test_errors_of_usage_quote_no_escapes(self, arguments: list[str]) -> None:
        result = call(*arguments)
        assert result.exit_code == 2
        shown = result.output
        assert not any(mark in shown for mark in ("\x1b[31m", "\u202e", "\udcff"))


@pytest.mark.usefixtures("tiny_backbones")
class TestSettings:
    @pytest.mark.parametrize("rank", ["5", "2", "-1"])
    def test_a_rank_outside_the_world(self, rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(GraceError, match=r"WORLD_SIZE is '2', .*: ranks are numbers"):
            Launch.from_environment()

    def test_other_rounding_is_noticed(self, tmp_path: Path) -> None:
        method = Finetune.Settings(base=recipe(), update=recipe())
        images = dataset(6, train=9, test=5)

        def chosen(**engine: Any) -> Any:
            changed = EngineSettings(device="cpu", **{"threads": 1, **engine})
            return settings(method, scenario=ScenarioSettings(base=3, increment=2), engine=changed)

        class Stop:
            def task_finished(self, task: Any) -> None:
                raise KeyboardInterrupt

            def __getattr__(self, name: str) -> Any:
                return lambda *_: None

        with pytest.raises(KeyboardInterrupt):
            run_experiment(chosen(), directory=tmp_path / "run", progress=Stop(), dataset=images)  # type: ignore[arg-type]
        with pytest.warns(GraceWarning, match="went on with threads "):
            record = run_experiment(
                chosen(threads=2), directory=tmp_path / "run", dataset=images, resume=True
            )
        assert any("threads" in note for note in record.info.notes)

    def test_an_interrupted_update_notices_it_too(self, tmp_path: Path) -> None:
        tensors = {"weight": torch.ones(2)}
        first = Journal(tmp_path)
        first._rounding = "1 threads"
        first._write("0000", {"kind": "sweep"}, tensors)
        again = Journal(tmp_path)
        again._rounding = "2 threads"
        with pytest.warns(GraceWarning, match="2 threads; before: 1 threads"):
            assert again._read("0000", {"kind": "sweep"}, 8) is not None
