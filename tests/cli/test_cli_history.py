"""``grace history``, called as people call it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from grace.learner.gate import Accuracies, sign_test
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from support.commands import call, ran
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.saved_learners import teach
from support.tiny_streams import SIZE, pictures, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def documents(home: Path) -> list[dict[str, Any]]:
    """The documents as they lie on the disk."""
    return [json.loads(path.read_text()) for path in sorted((home / "versions").iterdir())]


def test_a_table_has_a_line_for_every_version(saved: Path) -> None:
    result = call("history", saved)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in lines[1:6]]
    assert [row[:4] for row in rows[1:]] == [
        ["2", "1", "3", "compress"], ["3", "2", "4", "grow"],
        ["4 ×", "3", "5", "compress"], ["5 *", "3", "5", "compress"],
    ]  # fmt: skip
    for row, document in zip(rows[1:], documents(saved)[1:], strict=True):
        update = document["history"][-1]
        saturation, threshold = update["outcome"]["saturation"], update["outcome"]["threshold"]
        assert row[4:6] == [f"{saturation:.4g}", f"{threshold:.4g}"]
        told = Learner.load(saved, document["number"]).history[-1].accuracy
        assert row[8] == f"{told.old_before:.1%} → {told.old_after:.1%}".replace("%", " %")
        assert row[9] == f"{told.new_after:.1%}".replace("%", " %")
    assert "accuracy: on held-out images; * in use, × rejected, ( ) removed" in lines


def test_json_rounds_nothing(saved: Path) -> None:
    told = json.loads(call("history", saved, "--json").stdout)
    assert [own["kind"] for own in told] == ["learn"] * 5 + ["forget"]
    assert told[-1]["class_name"] == "cat"
    for own, document in zip(told, documents(saved), strict=False):
        update = document["history"][-1]
        assert (own["version"], own["parent"]) == (document["number"], document["parent"])
        assert own["status"] == document["status"]
        assert own["update"]["outcome"] == update["outcome"]
        assert own["update"]["accuracy"] == update["accuracy"]
        assert [found["num_lost"] for found in own["classes"]] == [
            found["lost"] for found in update["accuracy"]["classes"]
        ]
    assert [own["in_use"] for own in told[:5]] == [False] * 4 + [True]
    assert "Käse" in call("history", saved, "--json").stdout


def test_before_anything_was_learnt(tmp_path: Path) -> None:
    method = Replay.Settings(base=recipe(), update=recipe())
    home = tmp_path / "new"
    Learner.create(settings(method), shape=(3, SIZE, SIZE), directory=home)
    assert call("history", home).stdout == "nothing has been learnt yet\n"
    assert json.loads(call("history", home, "--json").stdout) == []


def test_a_growth_that_the_ceiling_forbade_is_explained(copied: Path) -> None:
    path = copied / "history.jsonl"
    path.write_text(path.read_text().replace('"compress"', '"compress (budget)"'))
    assert "compress (budget)" in call("history", copied).stdout.splitlines()[5]
    last = json.loads(call("history", copied, "--json").stdout)[-2]
    assert last["update"]["outcome"]["verdict"] == "compress (budget)"


def test_versions_that_were_removed_keep_their_lines(copied: Path) -> None:
    before = json.loads(call("history", copied, "--json").stdout)
    Learner.load(copied).keep_within(0)
    told = json.loads(call("history", copied, "--json").stdout)
    updates = [own for own in told if own["kind"] == "learn"]
    assert [own["version"] for own in updates] == [1, 2, 3, 4, 5]
    assert [own["removed"] for own in updates] == [True, True, True, True, False]
    same = ("version", "parent", "status", "digest", "date", "num_bytes", "update")
    earlier = [own for own in before if own["kind"] == "learn"]
    for own, was in zip(updates, earlier, strict=True):
        assert [own[name] for name in same] == [was[name] for name in same]
    assert "removed versions 1, 2, 3, 4" in call("history", copied).stdout


def test_the_gate_of_every_update_is_told(saved: Path) -> None:
    told = json.loads(call("history", saved, "--json").stdout)
    assert [own["gate"] for own in told[:3]] == [[], [], []]
    (rejected,), (accepted,) = (told[i]["gate"] for i in (3, 4))
    accuracy = Accuracies.model_validate(told[3]["update"]["accuracy"])
    assert (rejected["name"], rejected["limit"], rejected["is_passed"]) == ("max_drop", 5, False)
    assert rejected["observed"] == accuracy.drop
    assert rejected["num"] == accuracy.num_old
    lost, won = (sum(own[name] for own in told[3]["classes"]) for name in ("num_lost", "num_won"))
    assert rejected["p_value"] == sign_test(lost, won)
    assert (accepted["name"], accepted["limit"], accepted["is_passed"]) == ("max_drop", 100, True)


def test_the_interval_of_every_class_is_wilsons(saved: Path) -> None:
    told = json.loads(call("history", saved, "--json").stdout)
    classes = [own for update in told[:5] for own in update["classes"]]
    assert {own["name"] for own in classes} == {"apple", "Käse", "cat", "dog", "emu", "fox"}
    for own in classes:
        right = round(own["after"] * own["num_held_out"])
        ends = binomtest(right, own["num_held_out"]).proportion_ci(method="wilson")
        assert own["after_interval"] == pytest.approx([ends.low, ends.high], abs=1e-6)


def test_the_trail_tells_every_change(copied: Path) -> None:
    learner = Learner.load(copied)
    assert teach(learner, pictures(2, 18, seed=4), "cat")
    learner.rollback(5)
    learner.keep_within(0)
    told = json.loads(call("history", copied, "--json").stdout)
    assert all(event["date"] for event in told)
    kinds = [event["kind"] for event in told]
    assert sorted(kinds) == ["forget", *["learn"] * len(kinds[3:]), "prune", "rollback"]
    revived = [event["update"]["revived_class_names"] for event in told if event["update"]]
    assert revived == [[]] * 5 + [["cat"]]
    text = call("history", copied).stdout
    for words in (
        "forgot cat in versions",
        "learnt again, after they were forgotten: cat",
        "put version 5 in use, before it 6",
        "removed versions",
    ):
        assert words in text
    lines = text.splitlines()
    below = lines[lines.index("changes other than new classes and images") + 1 :]
    assert [line[2:6] for line in below] == ["20" + line[4:6] for line in below]


def test_an_interrupted_update_is_told_beside_the_table(copied: Path) -> None:
    before = call("history", copied, "--json")
    ModelStore.open(copied).begin(5, "0" * 64)
    for options in ([], ["--json"]):
        result = call("history", copied, *options)
        assert result.exit_code == 0
        (line,) = result.stderr.splitlines()
        assert line.startswith("An update was interrupted")
        assert f"'grace learn --model {copied} --discard'" in line
    assert result.stdout == before.stdout
    ran("learn", "--model", copied, "--discard")
    assert call("history", copied).stderr == ""
