"""``grace info``, ``history``, ``rollback``, ``forget`` and ``set``, called as people call them."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from grace.base.words import in_bytes
from grace.learner.gate import sign_test
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from support import one_process
from support.commands import ran
from support.learn_calls import files
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import SIZE, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def told(*arguments: object) -> Any:
    """What a verb prints as JSON."""
    return json.loads(ran(*arguments, "--json").stdout)


def test_readers_import_no_torch(saved: Path) -> None:
    readers = [("info",), ("info", "--json"), ("info", "--card"), ("history",)]
    calls = [(*reader, saved) for reader in readers]
    ends = one_process.calls(*calls, without=["torch", "torchvision", "numpy"])
    assert [end.exit_code for end in ends] == [0] * 4
    assert all(end.stdout.strip() for end in ends)


def test_a_page_of_a_learner(saved: Path) -> None:
    lines = ran("info", saved).stdout.splitlines()
    assert lines[:2] == [str(saved), ""]
    facts = {line[:38].strip(): line[38:].strip() for line in lines}
    assert (facts["versions"], facts["rejected versions"]) == ("1, 2, 3, 4, 5", "4")
    assert (facts["method"], facts["shape"], facts["in use version"]) == ("grace", "3, 8, 8", "5")
    # 2 · 74,640 and a head of 129 · 5.
    assert (facts["in use backbones"], facts["in use parameters"]) == ("2", "0.15 M")
    assert facts["in use threshold"] == "0.6"
    total = told("info", saved)["in_use"]["num_bytes"]["total"]
    assert facts["in use bytes total"] == in_bytes(total)
    start = lines.index("in use classes") + 1
    assert lines[start].split()[:2] == ["index", "name"]
    assert [line.split()[:3] for line in lines[start + 1 : start + 6]][1:3] == [
        ["1", "Käse", "no"],
        ["2", "cat", "yes"],
    ]
    below = lines[lines.index("settings that differ from their defaults") + 1 :]
    changed = {line.split()[0] for line in below}
    assert {"memory.size", "memory.max_mb", "method.expand_at", "method.grow.epochs"} <= changed
    assert not {"method.threshold", "seeds.data", "scenario.increment"} & changed


def test_before_anything_was_learnt(tmp_path: Path) -> None:
    method = Replay.Settings(base=recipe(), update=recipe())
    Learner.create(settings(method), shape=(3, SIZE, SIZE), directory=tmp_path / "new")
    assert "in use" not in ran("info", tmp_path / "new").stdout
    assert told("history", tmp_path / "new") == []
    assert ran("history", tmp_path / "new").stdout == "nothing has been learnt yet\n"


def test_a_damaged_version_blocks_nothing_but_its_own_use(copied: Path) -> None:
    (copied / "versions" / "0003.json").write_text("{")
    assert re.search(r"^damaged versions +3$", ran("info", copied).stdout, re.MULTILINE)
    facts = told("info", copied)
    assert (facts["versions"], facts["damaged_versions"]) == ([1, 2, 4, 5], [3])
    assert ran("history", copied).stderr.count("0003.json' is damaged") == 1
    (copied / "versions" / "0005.json").write_text("{")
    result = ran("info", copied, code=2)
    assert "0005.json' is damaged" in result.stderr
    assert result.stderr.count("\n") == 1
    back = ran("rollback", copied, 2)  # It is what people roll back from, not to.
    assert "is damaged" in back.stderr
    assert f"'{copied}' is at version 2 now" in back.stdout
    assert "undo" not in back.stdout
    assert ModelStore.open(copied).current() == 2


def test_an_interrupted_update_is_told_and_comes_first(copied: Path) -> None:
    before = ran("history", copied).stdout
    ModelStore.open(copied).begin(5, "0" * 64)
    drop = f"'grace learn --model {copied} --discard'"
    line = ran("info", copied).stdout.splitlines()[1]
    assert line.startswith("An update was interrupted: learn the same images again")
    assert line.endswith(f"{drop}.")
    assert told("info", copied)["interrupted_update"] is True
    result = ran("history", copied)
    assert (result.stdout, result.stderr) == (before, f"{line}\n")
    for change in (["forget", copied, "dog", "--yes"], ["set", copied, "memory.size=7"]):
        assert drop in ran(*change, code=2).stderr
    assert "an interrupted update only goes on from" in ran("rollback", copied, 3).stderr
    ran(*shlex.split(drop.strip("'"))[1:])
    ran("set", copied, "memory.size=7")
    assert ran("history", copied).stderr == ""


def test_the_table_of_a_history(saved: Path) -> None:
    lines = ran("history", saved).stdout.splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in lines[1:6]]
    assert [row[:4] for row in rows[1:]] == [
        ["2", "1", "3", "compress"], ["3", "2", "4", "grow"],
        ["4 ×", "3", "5", "compress"], ["5 *", "3", "5", "compress"],
    ]  # fmt: skip
    for row, number in zip(rows[1:], (2, 3, 4, 5), strict=True):
        update = Learner.load(saved, number).history[-1]
        outcome, accuracy = update.outcome, update.accuracy
        assert row[4:6] == [f"{outcome.saturation:.4g}", f"{outcome.threshold:.4g}"]
        shares = [
            f"{accuracy.old_before:.1%} → {accuracy.old_after:.1%}",
            f"{accuracy.new_after:.1%}",
        ]
        assert row[8:10] == [text.replace("%", " %") for text in shares]
    assert lines[-1].endswith("forgot cat in versions 2, 3, 4, 5")


def test_the_facts_of_a_history(saved: Path) -> None:
    rows = told("history", saved)
    assert [own["kind"] for own in rows] == ["learn"] * 5 + ["forget"]
    assert rows.pop()["class_name"] == "cat"
    for own in rows:
        document = ModelStore.open(saved).document(own["version"])
        assert (own["parent"], own["status"]) == (document.parent, document.status)
        assert own["update"] == document.history[-1].past.model_dump(mode="json")
        for found in own["classes"]:  # The interval of every class is Wilson's.
            right = binomtest(round(found["after"] * found["num_held_out"]), found["num_held_out"])
            ends = right.proportion_ci(method="wilson")
            assert found["after_interval"] == pytest.approx([ends.low, ends.high], abs=1e-6)
    assert [own["in_use"] for own in rows] == [False] * 4 + [True]
    assert [own["gate"] for own in rows[:3]] == [[], [], []]
    (rejected,), (accepted,) = (own["gate"] for own in rows[3:])
    accuracy = Learner.load(saved, 4).history[-1].accuracy
    assert (rejected["name"], rejected["limit"], rejected["is_passed"]) == ("max_drop", 5, False)
    assert rejected["observed"] == pytest.approx(100 * (accuracy.old_before - accuracy.old_after))
    assert rejected["num"] == accuracy.num_old
    lost, won = (sum(own[name] for own in rows[3]["classes"]) for name in ("num_lost", "num_won"))
    assert rejected["p_value"] == sign_test(lost, won)
    assert (accepted["limit"], accepted["is_passed"]) == (100, True)


def test_rollback_there_and_back(copied: Path) -> None:
    assert ran("rollback", copied, 2).stdout.splitlines() == [
        f"'{copied}' is at version 2 now, it was at 5",
        "classes gone  dog, fox",
        f"undo  grace rollback {copied} 5",
    ]
    assert Learner.load(copied).class_names == ["apple", "Käse", "cat"]
    there = ran("rollback", copied, 4).stdout.splitlines()
    assert there[1] == "classes back  dog, emu"
    assert there[2].startswith("it was rejected: the old classes lost ")
    assert ", 5 allowed (gate.max_drop)" in there[2]
    before = files(copied)
    again = ran("rollback", copied, 4).stdout
    assert again == f"'{copied}' is at version 4 already: nothing to do\n"
    assert files(copied) == before
    kept = ModelStore.open(copied).document(4).refs
    for ref in ModelStore.open(copied).document(1).refs:
        if ref not in kept:
            (copied / "objects" / f"{ref.sha256}.safetensors").write_bytes(b"damaged")
    assert "damaged" in ran("rollback", copied, 1, code=2).stderr
    assert "has no version 7 (it has 1, 2, 3, 4, 5)" in ran("rollback", copied, 7, code=2).stderr
    with ModelStore.open(copied).changing():
        assert "another process" in ran("rollback", copied, 5, code=2).stderr
    assert ModelStore.open(copied).current() == 4


def test_forget(copied: Path) -> None:
    before = files(copied)
    assert ran("forget", copied, "dog", code=2).stderr == (
        "error: 'dog' would be gone for good: add --yes to forget it without asking\n"
    )
    assert "did you mean 'dog'?" in ran("forget", copied, "dogg", "--yes", code=2).stderr
    assert files(copied) == before
    assert ran("forget", copied, "dog", "--yes").stdout.splitlines() == [
        f"forgot 'dog': removed its images from versions 3, 4, 5 of '{copied}'",
        "the weights are not unlearnt: what they know of it is hidden, not gone",
    ]
    assert ModelStore.open(copied).document(4).forgotten == (2, 3)
    again = ran("forget", copied, "dog", "--yes").stdout
    assert again == f"'{copied}' has forgotten 'dog' already: nothing to do\n"
    with ModelStore.open(copied).changing():
        assert "another process" in ran("forget", copied, "fox", "--yes", code=2).stderr
    ran("rollback", copied, 1)
    ran("forget", copied, "apple", "--yes")
    assert "'Käse' is the last class" in ran("forget", copied, "Käse", "--yes", code=2).stderr


@pytest.mark.parametrize(
    ("answer", "code", "last"),
    [
        (b"y\n", 0, "the weights are not unlearnt: what they know of it is hidden, not gone"),
        (b"n\n", 0, "nothing was changed"),
        (b"\x04", 130, "interrupted"),
    ],
)
def test_forget_asks_on_a_terminal(copied: Path, answer: bytes, code: int, last: str) -> None:
    ours, theirs = pty.openpty()
    script = (
        "import sys\nfrom grace.cli import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script, "forget", str(copied), "dog"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        os.write(ours, answer)
        text = process.communicate(timeout=60)[0].decode()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code, text
    assert "Forget 'dog'? [y/N]" in text
    assert text.endswith(f"{last}\n")
    assert (3 in ModelStore.open(copied).document(5).forgotten) == (answer == b"y\n")


def test_a_change_of_settings_is_said_shown_and_undone(copied: Path) -> None:
    lines = ran("set", copied, "memory.size=8", "method.threshold=0.3").stdout.splitlines()
    assert lines[:2] == ["set memory.size 30 → 8", "set method.threshold 0.6 → 0.3"]
    size, kept, held = lines[2].removeprefix(f"'{copied}' is at version 6 now: ").split(", ")
    assert re.fullmatch(r"[\d.]+ .?B", size)
    assert re.fullmatch(r"\d+ → 8 exemplars", kept)
    assert re.fullmatch(r"\d+ held-out images", held)
    assert lines[3] == f"undo  grace rollback {copied} 5"
    before = files(copied)
    again = ran("set", copied, "memory.size=8").stdout
    assert again == f"'{copied}' is set so already: nothing to do\n"
    assert files(copied) == before
    words = "set memory.size 30 → 8; method.threshold 0.6 → 0.3 (version 6)"
    assert words in ran("history", copied).stdout
    row, facts = told("history", copied)[-1], told("info", copied)
    assert (row["version"], row["kind"]) == (6, "set")
    assert (facts["settings"]["memory.size"], facts["changes"][-1]["kind"]) == (8, "set")
    ran(*shlex.split(lines[3])[2:])
    assert ModelStore.open(copied).settings().memory.size == 30


def test_without_settings_those_that_can_change_are_listed(saved: Path) -> None:
    lines = ran("set", saved).stdout.splitlines()
    paths = {line.split()[0]: line.split()[1:] for line in lines if "." in line}
    assert paths["gate.max_drop"] == ["none"]
    assert {"memory.max_mb", "method.threshold", "method.grow.epochs"} <= paths.keys()
    assert not {"backbone.name", "scenario.base", "data.image_size"} & paths.keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("backbone.name=resnet32", "cannot change it: its weights belong to that backbone"),
        ("memory.size=-1", "memory.size = -1 should be"),
        ("memory", "'memory' is no setting"),
        ("gate.maxdrop=1", "did you mean 'gate.max_drop'?"),
        ("gate.maxdrop=1", "' lists what can be set"),
        ("memory.max_mb=0.1", "set memory.max_mb="),
    ],
)
def test_settings_that_are_refused_change_nothing(text: str, says: str, copied: Path) -> None:
    before = files(copied)
    error = ran("set", copied, text, code=2).stderr
    assert says in error
    assert error.count("\n") == 1
    assert files(copied) == before
    if "max_mb" in text:  # The remedy works.
        ran("set", copied, error.rsplit(maxsplit=1)[-1])
