"""``grace set``, and ``grace learn`` with other settings, as people call them."""

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from grace.learner.store import ModelStore
from support.commands import call, ran
from support.learn_calls import files, learn, refused
from support.learn_calls import first as first
from support.learn_calls import made as made
from support.picture_folders import folder
from support.tiny_streams import tiny_backbones as tiny_backbones

changed = partial(ran, "set")


def test_a_change_is_said_shown_and_undone(first: tuple[Path, Path]) -> None:
    _, model = first
    lines = changed(model, "memory.max_mb=4", "method.threshold=0.3").stdout.splitlines()
    assert lines[:2] == ["set memory.max_mb none → 4.0", "set method.threshold 0.6 → 0.3"]
    assert re.fullmatch(
        rf"'{model}' is at version 2 now: [\d.]+ .?B, \d+ exemplars, \d+ held-out images", lines[2]
    )
    assert lines[3] == f"undo  grace rollback {model} 1"
    before = files(model)
    again = changed(model, "memory.max_mb=4")
    assert again.stdout == f"'{model}' is set so already: nothing to do\n"
    assert files(model) == before
    history = call("history", model).stdout
    assert "set memory.max_mb none → 4.0; method.threshold 0.6 → 0.3 (version 2)" in history
    rows = json.loads(call("history", model, "--json").stdout)
    assert [(row["version"], row["kind"]) for row in rows] == [(1, "learn"), (2, "set")]
    facts = json.loads(call("info", model, "--json").stdout)
    assert (facts["settings"]["memory.max_mb"], facts["changes"][-1]["kind"]) == (4, "set")
    assert call(*shlex.split(lines[3])[2:]).exit_code == 0
    assert ModelStore.open(model).settings().memory.max_mb is None


def test_it_says_how_many_images_are_dropped(first: tuple[Path, Path]) -> None:
    _, model = first
    line = changed(model, "memory.size=5").stdout.splitlines()[1]
    assert ", 20 → 4 exemplars, " in line, "as many of each class"
    line = changed(model, "memory.validation=1").stdout.splitlines()[1]
    assert line.endswith(", 4 exemplars, 4 → 2 held-out images")


def test_without_settings_it_lists_those_that_can_change(first: tuple[Path, Path]) -> None:
    lines = changed(first[1]).stdout.splitlines()
    paths = {line.split()[0]: line.split()[1:] for line in lines if "." in line}
    assert paths["memory.max_mb"] == ["none"]
    assert {"gate.max_drop", "method.threshold", "method.grow.epochs"} <= paths.keys()
    assert not {"backbone.name", "scenario.base", "data.image_size"} & paths.keys()


def test_an_unknown_setting_names_the_list_of_settings(first: tuple[Path, Path]) -> None:
    _, model = first
    error = changed(model, "gate.maxdrop=1", code=2).stderr
    assert "did you mean 'gate.max_drop'?" in error
    assert f"'grace set {model}' lists" in error
    assert f"'grace set {model}' lists" in changed(model, "nonsense=1", code=2).stderr


def test_a_full_ceiling_names_a_command_that_works(
    first: tuple[Path, Path], tmp_path: Path
) -> None:
    _, model = first
    error = changed(model, "memory.max_mb=0.1", code=2).stderr
    command = re.search(r"set (memory.max_mb=\S+)$", error.strip())
    assert command, error
    assert call("set", model, command[1]).exit_code == 0
    more = folder(tmp_path / "more", "cat", "dog")
    error = refused(more, "--model", model)
    option = re.search(r"or set (memory.max_mb=\S+)$", error)
    assert option, error
    done = learn(more, "--model", model, *shlex.split(option[1]))
    assert re.search(r"^settings   memory.max_mb \S+ → \S+$", done.stdout, re.MULTILINE)
    document = ModelStore.open(model).document(3)
    assert document.num_bytes <= 1e6 * (document.settings.memory.max_mb or 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("backbone.name=resnet32", "cannot change it: its weights belong to that backbone"),
        ("memory.size=-1", "memory.size = -1 should be"),
        ("memory", "'memory' is no setting"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(
    text: str, says: str, first: tuple[Path, Path]
) -> None:
    before = files(first[1])
    error = changed(first[1], text, code=2).stderr
    assert says in error
    assert error.count("\n") == 1
    assert files(first[1]) == before


def test_an_interrupted_update_comes_first(first: tuple[Path, Path]) -> None:
    _, model = first
    ModelStore.open(model).begin(1, "0" * 64)
    error = changed(model, "memory.size=7", code=2).stderr
    command = re.search(r"or drop it by '(grace learn .* --discard)'$", error.strip())
    assert command, error
    assert call(*shlex.split(command[1])[1:]).exit_code == 0
    changed(model, "memory.size=7")
