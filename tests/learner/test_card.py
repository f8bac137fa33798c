"""The model card of a learner: what it says, and what strangers' names cannot do in it."""

import re
from pathlib import Path

import pytest

from grace.base.errors import GraceError
from grace.learner.gate import wilson
from grace.learner.history import unnoted
from grace.learner.inventory import card, card_of
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


def rows(lines: list[str]) -> list[list[str]]:
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table[2:]]


def test_it_says_what_the_documents_say(saved: Path) -> None:
    text = call("info", saved, "--card").stdout
    assert text.startswith("# Model card: pets\n")
    home = ModelStore.open(saved)
    document = home.document(5)
    own = Learner.load(saved)
    measured = {each.index: each for each in document.history[-1].accuracy.classes}
    for index, row in enumerate(rows(section(text, "Classes"))):
        assert row[0] == str(index)
        name = document.class_names[index]
        assert row[1] == (f"{name} (forgotten)" if index == 2 else name)
        counts = (len(own.method.memory.of_class(index)), own.held_out.count(index))
        assert row[3:5] == [str(count) for count in counts]
        if index == 2:
            assert (row[2], *row[5:]) == ("–", "–", "–")
            continue
        assert row[2] == str(document.original_counts[index])
        found = measured[index]
        low, high = wilson(found.after, found.num)
        assert row[5] == f"{100 * found.after / found.num:.1f} % of {found.num}"
        assert row[6] == f"{100 * low:.0f} – {100 * high:.0f} %"
    assert [row[3] for row in rows(section(text, "Data"))] == [
        made.digest for made in home.documents()
    ]
    # The update of version 4 was rejected.
    assert [row[4] for row in rows(section(text, "Data"))] == ["yes", "yes", "yes", "no", "yes"]
    history = section(text, "History")
    assert "learnt apple, Käse (36 images" not in history[0]  # Some images are held out.
    assert re.match(r"- 20\d\d-\d\d-\d\d \d\d:\d\d: learnt apple, Käse \(30 images", history[0])
    assert "rejected" in history[3]
    assert "forgot cat in versions" in history[-2]
    assert any("hidden, not gone" in line for line in section(text, "Known limits"))


def test_python_gives_the_same(saved: Path) -> None:
    assert Learner.load(saved).card() == card_of(ModelStore.open(saved))
    old = Learner.load(saved, version=1).card()
    assert rows(section(old, "Classes"))[-1][1] == "Käse"


def test_removed_versions_keep_their_hashes(copied: Path) -> None:
    digests = [made.digest for made in ModelStore.open(copied).documents()]
    Learner.load(copied).keep_within(0)
    text = call("info", copied, "--card").stdout
    table = rows(section(text, "Data"))
    assert [row[0] for row in table] == [*(f"{n} (removed)" for n in range(1, 5)), "5"]
    assert [row[3] for row in table] == digests
    assert [row[4] for row in table] == ["yes", "yes", "yes", "no", "yes"]
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
    assert [row[2:5] for row in rows(section(text, "Classes"))] == [["6", "4", "0"]] * 2


def test_names_of_strangers_are_text(copied: Path) -> None:
    names = ["<script>", "[x](http://x)", "# `a` | b *c*"]
    own = Learner.load(copied)
    for number, name in enumerate(names):
        teach(own, pictures(number, 12, seed=7), name)
    text = own.card()
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[x|(?<!\\)\]\(http|(?<!\\)`a|(?<!\\)\*c", text)
    table = [line for line in section(text, "Classes") if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {8}


def test_pre_trained_weights_and_forged_dates(saved: Path) -> None:
    document = ModelStore.open(saved).document(5)

    def said(weights: str, date: str = "") -> str:
        backbone = BackboneSettings(weights=weights)
        changed = document.settings.model_copy(update={"backbone": backbone})
        last = document.history[-1].model_copy(update={"date": date})
        history = (*document.history[:-1], last)
        forged = document.model_copy(update={"settings": changed, "history": history})
        return card(forged, unnoted([forged]), [5], "x")

    assert "flatter classes that the pre-training has seen" in said("/nowhere/w_1.safetensors")
    assert r"| first weights | /nowhere/w\_1.safetensors |" in said("/nowhere/w_1.safetensors")
    assert "<b>" not in said("none", "<b>2026</b>")
    assert "flatter" not in said("none")
