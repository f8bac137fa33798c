"""What ``grace compare`` takes, shows and refuses."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grace.studies import study as studies
from grace.studies.results import StudyResult
from support import commands
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made

Calls = list[dict[str, Any]]
call = partial(commands.call, "compare")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, make_record: MakeRecord) -> Calls:
    """Put a comparison that trains nothing in place of the real one."""
    found: Calls = []

    def compare(experiment: str, overrides: Any, **options: Any) -> StudyResult:
        found.append({"experiment": experiment, "overrides": overrides, **options})
        return made(make_record, {"der": [(60, 70, 3)] * 3}, columns=["last"])

    monkeypatch.setattr(studies, "compare", compare)
    return found


def test_by_default_all_methods_with_three_seeds(calls: Calls) -> None:
    result = call()
    assert result.exit_code == 0, result.output
    [own] = calls
    assert (own["experiment"], own["methods"], own["seeds"]) == ("digits", (), [1, 2, 3])
    assert own["directory"] is None
    assert result.stdout.splitlines()[:3] == ["b0i10", "Row  Runs  Last (%)", "der     3     60.00"]


def test_what_is_asked_for(calls: Calls) -> None:
    words = ["digits", "memory.size=50", "--methods", "der, wa", "--seeds", "2, 5-6,0"]
    result = call(*words, "--jobs", "3", "--out", "there", "--json")
    assert result.exit_code == 0, result.output
    [own] = calls
    assert (own["methods"], own["seeds"]) == (("der", "wa"), [2, 5, 6, 0])
    assert own["overrides"] == ["memory.size=50"]
    assert own["directory"] == Path("there")
    assert own["workers"].keywords == {"at_once": 3}
    found = json.loads(result.stdout)
    assert found["tables"][0]["rows"] == [{"Row": "der", "Runs": "3", "Last (%)": "60.00"}]
    assert found["failures"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "one"], "error: --seeds 'one': write seeds as 1,2,3 or 1-3"),
        (["--seeds", "3-1"], "error: --seeds '3-1': write seeds as"),
        (["--methods", "derr"], "error: method: unknown method 'derr'; did you mean 'der'?"),
        (["digits", "cifar10"], "error: 'cifar10' is no setting: after the experiment 'digits'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_failures_are_told_and_end_with_1(
    monkeypatch: pytest.MonkeyPatch, make_record: MakeRecord
) -> None:
    plain = made(make_record, {"der": []})
    failed = StudyResult(plain.study, plain.selection, plain.cells, {}, {"der s1": "no room"})
    monkeypatch.setattr(studies, "compare", lambda *_, **__: failed)
    result = call("--methods", "der", "--seeds", "1")
    assert result.exit_code == 1
    assert "der s1 failed: no room" in result.stdout


def test_a_request_to_end_counts_as_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(studies, "compare", compare)
    result = call("--methods", "der")
    assert result.exit_code == 130
    assert "the same command continues them" in result.stderr
    assert signal.getsignal(signal.SIGTERM) is before
