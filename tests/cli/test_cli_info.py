"""``grace info``, called as people call it."""

import json
import re
from pathlib import Path

import pytest

from grace.base.words import in_bytes
from grace.learner.learner import Learner
from grace.methods.memo import Memo
from grace.methods.replay import Replay
from support import one_process
from support.commands import call
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def test_readers_import_no_torch(saved: Path) -> None:
    readers = [
        ("info",),
        ("info", "--json"),
        ("info", "--card"),
        ("history",),
    ]
    heavy = ["torch", "torchvision", "plotly", "numpy"]
    ends = one_process.calls(*((*reader, saved) for reader in readers), without=heavy)
    assert [end.exit_code for end in ends] == [0] * 4
    assert all(end.stdout.strip() for end in ends)


def test_a_page_tells_what_there_is(saved: Path) -> None:
    result = call("info", saved)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[:2] == [str(saved), ""]
    facts = {line[:38].strip(): line[38:].strip() for line in lines}
    assert (facts["versions"], facts["rejected versions"]) == ("1, 2, 3, 4, 5", "4")
    assert (facts["method"], facts["shape"], facts["in use version"]) == ("grace", "3, 8, 8", "5")
    # 2 · 74,640 and a head of 129 · 5.
    assert (facts["in use backbones"], facts["in use parameters"]) == ("2", "0.15 M")
    assert facts["in use threshold"] == "0.6"
    told = json.loads(call("info", saved, "--json").stdout)
    assert facts["in use bytes total"] == in_bytes(told["in_use"]["num_bytes"]["total"])
    start = lines.index("in use classes") + 2
    learner = Learner.load(saved)
    assert [line.split() for line in lines[start : start + 5]] == [
        [
            str(index),
            name,
            "yes" if name == "cat" else "no",
            str(len(learner.method.memory.of_class(index))),
            str(learner.held_out.count(index)),
        ]
        for index, name in enumerate(("apple", "Käse", "cat", "dog", "fox"))
    ]
    below = lines[lines.index("settings that differ from their defaults") + 1 :]
    changed = {line.split()[0] for line in below}
    assert {"memory.size", "memory.max_mb", "method.expand_at", "method.grow.epochs"} <= changed
    assert not {"method.threshold", "seeds.data", "scenario.increment"} & changed


def test_json_tells_the_same(saved: Path) -> None:
    facts = json.loads(call("info", saved, "--json").stdout)
    assert (facts["versions"], facts["rejected_versions"]) == ([1, 2, 3, 4, 5], [4])
    assert (facts["shape"], facts["settings"]["memory.size"]) == ([3, 8, 8], 30)
    assert facts["interrupted_update"] is False
    own = facts["in_use"]
    assert (own["version"], own["num_updates"]) == (5, 4)
    assert own["num_parameters"] == 2 * 74_640 + 5 * 129
    parts = {key: value for key, value in own["num_bytes"].items() if key != "ceiling"}
    assert own["num_bytes"]["ceiling"] == 2_000_000
    total = parts.pop("total")
    assert sum(parts.values()) == total
    assert [entry["name"] for entry in own["classes"] if entry["forgotten"]] == ["cat"]
    files = [*(saved / "objects").iterdir(), *(saved / "versions").iterdir()]
    assert facts["num_bytes_of_all_versions"] == sum(file.stat().st_size for file in files)


def test_an_interrupted_update_is_told_with_what_to_do(copied: Path) -> None:
    (copied / "pending").mkdir()
    (copied / "pending" / "update.json").write_text("{}")
    assert json.loads(call("info", copied, "--json").stdout)["interrupted_update"] is True
    line = call("info", copied).stdout.splitlines()[1]
    assert line.startswith("An update was interrupted: learn the same images again")
    assert line.endswith(f"'grace learn --model {copied} --discard'.")


def test_before_anything_was_learnt(tmp_path: Path) -> None:
    home = tmp_path / "new"
    method = Replay.Settings(base=recipe(), update=recipe())
    Learner.create(settings(method), shape=(1, SIZE, SIZE), directory=home)
    result = call("info", home)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert not any(line.startswith(("in use", "versions")) for line in lines)
    assert json.loads(call("info", home, "--json").stdout)["in_use"] is None


def test_what_is_no_learner_or_damaged_is_one_line(copied: Path, tmp_path: Path) -> None:
    result = call("info", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is no learner" in result.stderr
    (copied / "versions" / "0005.json").write_text("{")
    result = call("info", copied)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "0005.json' is damaged" in result.stderr


def test_an_old_version_that_is_damaged_blocks_nothing(copied: Path) -> None:
    (copied / "versions" / "0003.json").write_text("{")
    result = call("info", copied)
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"^damaged versions +3$", result.stdout, re.MULTILINE)
    facts = json.loads(call("info", copied, "--json").stdout)
    assert (facts["versions"], facts["damaged_versions"]) == ([1, 2, 4, 5], [3])


def test_branches_of_a_trunk_are_no_whole_backbones(tmp_path: Path) -> None:
    method, home = Memo.Settings(base=recipe(), grow=recipe()), tmp_path / "memo"
    made = Learner.create(settings(method), shape=(3, 8, 8), directory=home)
    for counts in ({0: 8, 1: 8}, {2: 8}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    assert made.home is not None
    facts = json.loads(call("info", home, "--json").stdout)["in_use"]
    # By hand: a stem and stages of 16 and 32 channels, twice a stage of 64, a head of 129 · 3.
    trunk, branch = (432 + 32) + (2 * 2304 + 64) + (4608 + 9216 + 128), 18_432 + 36_864 + 256
    assert facts["num_parameters"] == trunk + 2 * branch + 129 * 3
    parts = made.home.document(2).parts
    assert {"trunk", "backbone.0", "backbone.1"} < set(parts)
    files = [home / "objects" / f"{ref.sha256}.safetensors" for ref in parts.values()]
    weights = sum(file.stat().st_size for file in files)
    assert facts["num_bytes"]["weights_and_method_state"] == weights
