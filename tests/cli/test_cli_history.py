"""``grace history``, called as people call it."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from scipy.stats import binomtest

from grace.learner.document import Document
from grace.learner.learner import Learner
from grace.learner.statistics import sign_test
from grace.learner.store import ModelStore
from grace.settings.methods import ReplaySettings
from support.commands import call, ran
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.saved_learners import teach
from support.tiny_streams import SIZE, pictures, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def rows_of_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def documents(home: Path) -> list[dict[str, Any]]:
    """The documents as they lie on the disk."""
    return [json.loads(path.read_text()) for path in sorted((home / "versions").iterdir())]


def test_a_table_has_two_lines_for_every_version(saved: Path) -> None:
    result = call("history", saved)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    first, second = lines[2:12:2], lines[3:12:2]
    assert [line.split()[0] for line in first] == ["1", "2", "3", "4", "5"]
    assert [line[:4].strip() for line in second] == ["", "← 1", "← 2", "← 3", "← 3"]
    assert ["*" in line for line in first] == [False] * 4 + [True]
    assert ["×" in line for line in first] == [False] * 3 + [True, False]
    assert [line[4:12].strip() for line in first] == ["+2", "+1", "+1", "+1", "+1"]
    assert [line[4:12].strip() for line in second] == ["2", "3", "4", "5", "5"]
    for line, below, document in zip(first[1:], second[1:], documents(saved)[1:], strict=True):
        update = document["history"][-1]
        assert f" {update['outcome']['saturation']:.3f} " in line
        assert f" {update['outcome']['threshold']:.3f} " in below
        accuracy = update["accuracy"]
        assert f" {100 * accuracy['old_before']:.1f} " in line
        assert below.split()[-3] == f"{100 * accuracy['old_after']:.1f}"
        if update["outcome"]["verdict"] == "compress":
            cost = 100 * (accuracy["teacher"] - accuracy["student"])
            assert f"cost {cost:.1f} " in below
        else:
            assert "cost" not in below
    assert "* in use" in lines
    assert "× rejected" in lines
    assert max(map(cell_len, lines)) <= 80


def test_csv_and_json_round_nothing(saved: Path) -> None:
    rows = rows_of_csv(call("history", saved, "--csv").stdout)
    told = json.loads(call("history", saved, "--json").stdout)
    objects = [own for own in told if own["kind"] == "update"]
    assert [own["kind"] for own in told] == ["update"] * 5 + ["forget"]
    assert told[-1]["class_names"] == ["cat"]
    assert len(rows) == len(objects) == 5
    for row, own, document in zip(rows, objects, documents(saved), strict=True):
        update = document["history"][-1]
        assert int(row["version"]) == own["version"] == document["number"]
        assert own["parent"] == document["parent"]
        assert row["parent"] == str(document["parent"] or "")
        assert own["status"] == row["status"] == document["status"]
        assert own["new_class_names"] == update["new_class_names"]
        assert own["saturation"] == update["outcome"]["saturation"]
        assert row["saturation"] == str(update["outcome"]["saturation"] or "")
        assert own["old_accuracy_after"] == update["accuracy"]["old_after"]
        assert own["seconds"] == update["seconds"]
        assert "new_class_names" not in row
        assert set(row) == set(own) - {
            "kind", "new_class_names", "revived_class_names", "classes", "gate"
        }  # fmt: skip
        assert [found["index"] for found in own["classes"]] == [
            found["index"] for found in update["accuracy"]["classes"]
        ]
    assert [row["in_use"] for row in rows] == ["false"] * 4 + ["true"]
    assert "Käse" in call("history", saved, "--json").stdout


def test_another_threshold_is_told_with_what_it_is_worth(saved: Path) -> None:
    result = call("history", saved, "--threshold", 0)
    lines = result.stdout.splitlines()
    assert lines[0].endswith(" at 0")
    # Nothing lies below 0; the first update assessed nothing.
    assert [line.split()[-1] for line in lines[2:12:2]] == ["–", "grow", "grow", "grow", "grow"]
    text = " ".join(result.stdout.split())
    assert "with decay 0.96, would have decided on the saturations as they were" in text
    assert "later saturations would have been others" in text
    assert max(map(cell_len, lines)) <= 80
    table = call("history", saved, "--threshold", 1, "--decay", 0.001, "--csv")
    verdicts = [row["what_if_verdict"] for row in rows_of_csv(table.stdout)]
    # 1 is above all, 0.001 below all; versions 4 and 5 both follow version 3.
    assert verdicts == ["", "compress", "grow", "compress", "compress"]
    assert "with decay 0.001" in table.stderr
    # The learner's own threshold is 0.6, and every one below 1e-9 below all.
    objects = json.loads(call("history", saved, "--decay", 1e-9, "--json").stdout)
    assert [own["what_if_verdict"] for own in objects[1:3]] == ["compress", "grow"]
    assert "what_if_verdict" not in json.loads(call("history", saved, "--json").stdout)[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--threshold", "1.5"], "threshold 1.5 must lie between 0 and 1"),
        (["--decay", "0"], "decay 0 must lie above 0"),
        (["--json", "--csv"], "give one of them"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments: list[str], says: str, saved: Path) -> None:
    result = call("history", saved, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_before_anything_was_learnt(tmp_path: Path) -> None:
    method = ReplaySettings(base=recipe(), update=recipe())
    home = tmp_path / "new"
    Learner.create(settings(method), shape=(3, SIZE, SIZE), directory=home)
    assert call("history", home).stdout == "nothing has been learnt yet\n"
    assert json.loads(call("history", home, "--json").stdout) == []
    assert "measured a saturation" in call("history", home, "--threshold", 0.5).stderr


def test_a_growth_that_the_ceiling_forbade_is_explained(copied: Path) -> None:
    home = ModelStore.open(copied)
    raw = home.document(5).model_dump(mode="json")
    raw["history"][-1]["outcome"]["verdict"] = "compress (budget)"
    home.write(Document.model_validate(raw))
    lines = call("history", copied).stdout.splitlines()
    assert lines[10].split()[3] == "budget"
    assert "budget: compressed, since the ceiling left no room to grow" in lines
    (last,) = rows_of_csv(call("history", copied, "--csv").stdout)[-1:]
    assert last["verdict"] == "compress (budget)"


def test_versions_that_were_removed_keep_their_numbers(copied: Path) -> None:
    before = json.loads(call("history", copied, "--json").stdout)
    facts = documents(copied)
    Learner.load(copied).keep_versions(1)
    lines = call("history", copied).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:10:2]] == ["(1)", "(2)", "(3)", "5"]
    assert "( ) removed" in lines
    assert "– no version of its own is kept" not in lines
    words = "removed versions 1 (apple, Käse), 2 (cat), 3 (dog), 4 (emu; rejected)"
    assert lines[-1].endswith(f"  {words}")
    told = json.loads(call("history", copied, "--json").stdout)
    updates = [own for own in told if own["kind"] == "update"]
    assert [own["version"] for own in updates] == [1, 2, 3, 5]
    assert [own["removed"] for own in updates] == [True, True, True, False]
    assert [own["digest"] for own in updates] == [facts[i]["digest"] for i in (0, 1, 2, 4)]
    same = ("version", "parent", "status", "digest", "date", "num_images", "new_class_names")
    for own, was in zip(updates, [before[i] for i in (0, 1, 2, 4)], strict=True):
        assert [own[name] for name in same] == [was[name] for name in same]
    # The rejected one led to nothing that is left: the note on its removal knows it.
    (prune,) = (own for own in told if own["kind"] == "prune")
    assert [own["number"] for own in prune["removed"]] == prune["versions"] == [1, 2, 3, 4]
    rejected, was = prune["removed"][3], before[3]
    assert (rejected["status"], rejected["new_class_names"]) == ("rejected", ["emu"])
    assert [rejected[name] for name in ("parent", "digest", "date", "num_images")] == [
        was[name] for name in ("parent", "digest", "date", "num_images")
    ]


def test_versions_that_an_earlier_grace_removed_are_told_without_number(copied: Path) -> None:
    Learner.load(copied).keep_versions(1)
    path = copied / "changes.json"
    log = json.loads(path.read_text())
    for change in log["changes"]:
        change.pop("removed", None)
    path.write_text(json.dumps(log))
    lines = call("history", copied).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:10:2]] == ["–", "–", "–", "5"]
    assert "– no version of its own is kept" in lines
    assert "removed versions 1, 2, 3, 4" in call("history", copied).stdout


def test_the_gate_of_every_update_is_told(saved: Path) -> None:
    told = json.loads(call("history", saved, "--json").stdout)
    assert [own["gate"] for own in told[:3]] == [[], [], []]
    (rejected,), (accepted,) = (told[i]["gate"] for i in (3, 4))
    drop = 100 * (told[3]["old_accuracy_before"] - told[3]["old_accuracy_after"])
    assert (rejected["limit"], rejected["points"], rejected["passed"]) == ("max_drop", 5, False)
    assert rejected["observed_points"] == pytest.approx(drop)
    assert rejected["num_held_out"] == told[3]["num_held_out_old"]
    lost, won = (sum(own[name] for own in told[3]["classes"]) for name in ("num_lost", "num_won"))
    assert rejected["p_value"] == sign_test(lost, won)
    assert (accepted["limit"], accepted["points"], accepted["passed"]) == ("max_drop", 100, True)


def test_every_class_over_the_versions(saved: Path) -> None:
    lines = call("history", saved, "--classes").stdout.splitlines()
    assert lines[0].split() == ["class", "1", "2", "3", "4", "×", "5", "held", "out"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:9:2]}
    assert set(rows) == {"apple", "Käse", "cat", "dog"}
    # Three images of each class; the last number is theirs.
    assert all(row[-1] == "3" for row in rows.values())
    assert rows["cat"][0] == "–"
    # Below each accuracy stands its interval: those of 0, 1, 2 and 3 of 3 images.
    ends = {"0.0": "0–56", "33.3": "6–79", "66.7": "21–94", "100.0": "44–100"}
    for row, below in zip(rows.values(), lines[2:9:2], strict=True):
        assert below.split() == [ends[cell] for cell in row[:-1] if cell != "–"]


def test_every_class_and_update_as_csv(saved: Path) -> None:
    rows = rows_of_csv(call("history", saved, "--classes", "--csv").stdout)
    measured = [
        (document["number"], document["class_names"][own["index"]], own)
        for document in documents(saved)
        for own in document["history"][-1]["accuracy"]["classes"]
    ]
    assert [(row["version"], row["name"]) for row in rows] == [
        (str(number), name) for number, name, _ in measured
    ]
    for row, (_, _, own) in zip(rows, measured, strict=True):
        assert row["num_held_out"] == str(own["num"])
        for key in ("before", "after"):
            cells = [row[key], row[f"{key}_interval_low"], row[f"{key}_interval_high"]]
            if own[key] is None:
                assert cells == ["", "", ""]
                continue
            ends = binomtest(own[key], own["num"]).proportion_ci(method="wilson")
            wanted = [own[key] / own["num"], ends.low, ends.high]
            assert [float(cell) for cell in cells] == pytest.approx(wanted, abs=1e-6)
    assert {row["status"] for row in rows if row["version"] == "4"} == {"rejected"}


def test_texts_of_a_stranger_are_no_formulas(copied: Path) -> None:
    home = ModelStore.open(copied)
    raw = home.document(5).model_dump(mode="json")
    raw["history"][-1]["date"], raw["class_names"][0] = "=1+1", "-apple"
    raw["history"][0]["new_class_names"][0] = "-apple"
    home.write(Document.model_validate(raw))
    assert rows_of_csv(call("history", copied, "--csv").stdout)[-1]["date"] == "'=1+1"
    names = {
        row["name"] for row in rows_of_csv(call("history", copied, "--classes", "--csv").stdout)
    }
    assert "'-apple" in names
    assert "-apple" not in names


def test_the_trail_tells_every_change(copied: Path) -> None:
    learner = Learner.load(copied)
    assert teach(learner, pictures(2, 18, seed=4), "cat")
    learner.rollback(5)
    learner.keep_versions(1)
    told = json.loads(call("history", copied, "--json").stdout)
    assert all(event["date"] for event in told)
    kinds = [event["kind"] for event in told]
    assert sorted(kinds) == ["forget", "prune", "rollback", *["update"] * len(kinds[3:])]
    (revived,) = (event for event in told if event.get("revived_class_names"))
    assert revived["revived_class_names"] == ["cat"]
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
    before = call("history", copied, "--csv")
    ModelStore.open(copied).begin(5, "0" * 64)
    for options in ([], ["--csv"]):
        result = call("history", copied, *options)
        assert result.exit_code == 0
        (line,) = result.stderr.splitlines()
        assert line.startswith("An update was interrupted")
        assert f"'grace learn --model {copied} --discard'" in line
    assert result.stdout == before.stdout
    ran("learn", "--model", copied, "--discard")
    assert call("history", copied).stderr == ""
