"""The model card of a learner: what it says, and what strangers' names cannot do in it."""

import re
from pathlib import Path

import pytest

from grace.base.errors import GraceError
from grace.learner.gate import wilson
from grace.learner.history import unnoted
from grace.learner.inventory import card
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from grace.settings.experiment import BackboneSettings, MemorySettings
from support.commands import call
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.saved_learners import teach
from support.tiny_streams import labelled, learner, pictures, recipe

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def section(text: str, title: str) -> list[str]:
    lines = text.splitlines()
    start = lines.index(f"## {title}") + 2
    return lines[start : next((i for i in range(start, len(lines)) if lines[i][:2] == "##"), None)]


def rows(text: str, title: str) -> list[list[str]]:
    table = [line.strip("|").split("|") for line in section(text, title) if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table[2:]]


def test_it_says_what_the_documents_say(saved: Path) -> None:
    text = call("info", saved, "--card").stdout
    assert text.startswith("# Model card: pets\n")
    own, home = Learner.load(saved), ModelStore.open(saved)
    assert own.card() == text
    measured = {each.index: each for each in own.history[-1].accuracy.classes}
    for index, row in enumerate(rows(text, "Classes")):
        counts = (len(own.method.memory.of_class(index)), own.held_out.count(index))
        assert [row[0], *row[3:5]] == [str(index), *map(str, counts)]
        name = own.class_names[index]
        if index == 2:
            assert (*row[1:3], *row[5:]) == (f"{name} (forgotten)", "–", "–", "–")
            continue
        found = measured[index]
        low, high = wilson(found.after, found.num)
        assert row[1:3] == [name, str(own.method.memory.original_counts[index])]
        assert row[5:] == [
            f"{100 * found.after / found.num:.1f} % of {found.num}",
            f"{100 * low:.0f} – {100 * high:.0f} %",
        ]
    assert [row[3] for row in rows(text, "Data")] == [
        made.digest for made in home.survey().documents
    ]
    # The update of version 4 was rejected.
    assert [row[4] for row in rows(text, "Data")] == ["yes", "yes", "yes", "no", "yes"]
    settings = dict(rows(text, "Settings that differ from their defaults"))
    assert settings[r"memory.max\_mb"] == "2.0"
    assert not [value for value in settings.values() if value.startswith('"')]
    history = section(text, "History")
    # 36 images, of which some are held out.
    assert re.match(r"- 20\d\d-\d\d-\d\d \d\d:\d\d: learnt apple, Käse \(30 images", history[0])
    assert "forgot cat in versions" in history[-2]
    assert any("hidden, not gone" in line for line in section(text, "Known limits"))
    assert rows(Learner.load(saved, version=1).card(), "Classes")[-1][1] == "Käse"


def test_removed_versions_keep_their_hashes(copied: Path) -> None:
    digests = [made.digest for made in ModelStore.open(copied).survey().documents]
    Learner.load(copied).keep_within(0)
    text = call("info", copied, "--card").stdout
    removed = [*(f"{n} (removed)" for n in range(1, 5)), "5"]
    assert [(row[0], row[3]) for row in rows(text, "Data")] == [*zip(removed, digests, strict=True)]
    assert "removed versions 1, 2, 3, 4" in text


def test_a_learner_needs_a_home_for_one(tmp_path: Path) -> None:
    made = learner(Replay.Settings(base=recipe(), update=recipe()), memory=MemorySettings(size=8))
    with pytest.raises(GraceError, match="has no home: save it into a directory first"):
        made.card()
    data = labelled({0: 6, 1: 6})
    made.update(data.images, ["a b" if label else "*c*" for label in data.labels])
    made.save(tmp_path / "home")
    text = made.card()
    assert "No images are held out" in text
    assert "not learnt in this home" in text
    assert [row[2:5] for row in rows(text, "Classes")] == [["6", "4", "0"]] * 2


def test_what_strangers_wrote_is_text(copied: Path) -> None:
    own = Learner.load(copied)
    for number, name in enumerate(("<script>", "[x](http://x)", "# `a` | b *c*")):
        teach(own, pictures(number, 12, seed=7), name)
    text = own.card()
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[x|(?<!\\)\]\(http|(?<!\\)`a|(?<!\\)\*c", text)
    table = [line for line in section(text, "Classes") if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {8}
    assert "flatter" not in text
    document = own.home.document(own.version)
    backbone = BackboneSettings(weights="/nowhere/w_1.safetensors")
    changed = document.settings.model_copy(update={"backbone": backbone})
    last = document.history[-1].model_copy(update={"date": "<b>2026</b>"})
    history = (*document.history[:-1], last)
    forged = document.model_copy(update={"settings": changed, "history": history})
    text = card(forged, unnoted([forged]), [5], "x")
    assert "flatter classes that the pre-training has seen" in text
    assert r"| first weights | /nowhere/w\_1.safetensors |" in text
    assert "<b>" not in text
