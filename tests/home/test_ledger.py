"""The ledger of a learner's updates, and what another threshold would have decided."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from grace.engine.work import Seconds, WorkDone
from grace.learner.accuracies import Accuracies
from grace.learner.document import UpdateRecord
from grace.learner.learner import Learner
from grace.learner.ledger import LedgerEntry, as_row, ledger, other_threshold, what_if
from grace.learner.store import ModelStore
from grace.methods.outcome import Outcome
from grace.nn.threshold import Threshold
from grace.settings.experiment import MemorySettings
from grace.settings.methods import GraceSettings, ReplaySettings
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import SIZE, class_names, labelled, learner, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def updates(saturations: Sequence[float | None]) -> list[UpdateRecord]:
    return [
        UpdateRecord(
            task=i + 1, new_class_names=(), outcome=Outcome(verdict="start", saturation=own)
        )
        for i, own in enumerate(saturations)
    ]


@pytest.mark.parametrize(
    ("saturations", "initial", "decay", "verdicts"),
    [
        ([], 0.4, 0.5, []),
        # 0.39 < 0.4; 0.25 against 0.2; 0.4 against 0.4 anew; 0.3 < 0.4; 0.2 against 0.2.
        (
            [None, 0.39, 0.25, 0.4, 0.3, 0.2],
            0.4,
            0.5,
            [None, "compress", "grow", "grow", "compress", "grow"],
        ),
        # What measured nothing leaves the threshold: 0.3 < 0.4, 0.19 < 0.2, 0.11 against 0.1.
        (
            [0.3, None, 0.19, None, 0.11],
            0.4,
            0.5,
            ["compress", None, "compress", None, "grow"],
        ),
        # Without decay a row of compressions changes nothing.
        ([0.39, 0.39, 0.39], 0.4, 1.0, ["compress"] * 3),
        ([0.0, 1.0], 0.0, 0.9, ["grow", "grow"]),
        ([0.0, 0.999, 1.0], 1.0, 1.0, ["compress", "compress", "grow"]),
    ],
)
def test_what_if_by_hand(
    saturations: list[float | None],
    initial: float,
    decay: float,
    verdicts: list[str | None],
) -> None:
    assert what_if(updates(saturations), initial, decay) == verdicts


@pytest.mark.parametrize(
    ("initial", "decay", "says"),
    [
        (-0.1, 0.9, "threshold -0.1"),
        (1.1, 0.9, "threshold 1.1"),
        (float("nan"), 0.9, "threshold nan"),
        (0.5, 0.0, "decay 0 "),
        (0.5, 1.5, "decay 1.5"),
    ],
)
def test_what_if_refuses_what_no_threshold_can_be(initial: float, decay: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        what_if([], initial, decay)


def test_with_its_own_threshold_a_learner_would_have_decided_as_it_did() -> None:
    method = GraceSettings(
        base=recipe(2), grow=recipe(), compress=recipe(), threshold=0.2, threshold_decay=0.9
    )
    made = learner(method, memory=MemorySettings(size=20))
    for counts in ({0: 8, 1: 8}, {2: 8}, {3: 8}, {4: 8}, {5: 8}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    recorded = [update.outcome.verdict for update in made.history]
    assert what_if(made.history, 0.2, 0.9) == [None, *recorded[1:]]


class TestLedger:
    def test_every_version_is_a_row(self, saved: Path) -> None:
        home = ModelStore.open(saved)
        rows = [as_row(entry) for entry in ledger(home.documents(), home.current())]
        assert [row["version"] for row in rows] == [1, 2, 3, 4, 5]
        assert [row["parent"] for row in rows] == [None, 1, 2, 3, 3]
        assert [row["status"] for row in rows] == [
            "accepted", "accepted", "accepted", "rejected", "accepted"
        ]  # fmt: skip
        assert [row["in_use"] for row in rows] == [False] * 4 + [True]
        assert [row["num_new_classes"] for row in rows] == [2, 1, 1, 1, 1]
        assert [row["num_classes"] for row in rows] == [2, 3, 4, 5, 5]
        assert [row["verdict"] for row in rows] == [
            "start", "compress", "grow", "compress", "compress"
        ]  # fmt: skip
        backbones = [(row["backbones_before"], row["backbones_after"]) for row in rows]
        assert backbones == [(0, 1), (1, 1), (1, 2), (2, 2), (2, 2)]
        # A ResNet-8 has 74,640 parameters, its head 65 of each class; that of two 129.
        counts = [0, 74_640 + 130, 74_640 + 195, 149_280 + 516, 149_280 + 645]
        assert [row["parameters_before"] for row in rows] == [*counts[:4], counts[3]]
        assert [row["parameters_after"] for row in rows] == [*counts[1:], counts[4]]
        # Three of each of four classes.
        assert rows[3]["num_held_out_old"] == 12
        lost = rows[3]["old_accuracy_before"] - rows[3]["old_accuracy_after"]
        assert lost > 0.05
        assert rows[3]["max_drop_points"] == 5

    def test_costs_are_points_and_accuracies_shares(self) -> None:
        accuracy = Accuracies(old_before=0.9, old_after=0.8, teacher=0.75, student=0.5)
        update = UpdateRecord(
            task=1,
            new_class_names=("cat",),
            outcome=Outcome(verdict="compress"),
            accuracy=accuracy,
        )
        entry = LedgerEntry(
            update=update,
            version=1,
            parent=None,
            status="accepted",
            is_current=True,
            num_classes=1,
            num_bytes=None,
        )
        row = as_row(entry)
        assert row["compression_cost_points"] == pytest.approx(25)
        assert (row["old_accuracy_before"], row["old_accuracy_after"]) == (0.9, 0.8)

    def test_updates_whose_versions_were_removed_are_told_once(self, copied: Path) -> None:
        made = Learner.load(copied)
        made.keep_versions(2)
        home = ModelStore.open(copied)
        assert home.numbers() == [4, 5]
        entries = ledger(home.documents(), home.current())
        assert [entry.version for entry in entries] == [None, None, None, 4, 5]
        assert [entry.update.task for entry in entries] == [1, 2, 3, 4, 4]
        assert [entry.status for entry in entries] == ["accepted"] * 3 + ["rejected", "accepted"]
        assert [entry.num_classes for entry in entries] == [2, 3, 4, 5, 5]
        told = ledger(home.documents(), home.current(), changes=home.log.changes())
        assert [entry.version for entry in told] == [1, 2, 3, 4, 5]
        assert [entry.is_removed for entry in told] == [True] * 3 + [False] * 2

    def test_a_removed_version_is_not_taken_for_the_settings_that_followed(
        self, copied: Path
    ) -> None:
        made = Learner.load(copied)
        made.change_settings("memory.max_mb=4")
        home = ModelStore.open(copied)
        digest = home.document(5).digest
        made.keep_versions(1)
        assert home.numbers() == [6]
        entries = ledger(home.documents(), home.current(), changes=home.log.changes())
        assert [entry.version for entry in entries] == [1, 2, 3, 5, 6]
        assert [entry.is_set for entry in entries] == [False] * 4 + [True]
        assert entries[-2].digest == digest

    def test_a_learner_that_was_saved_later_tells_all_its_updates(self, tmp_path: Path) -> None:
        made = Learner.create(
            settings(ReplaySettings(base=recipe(), update=recipe())), shape=(3, SIZE, SIZE)
        )
        for counts in ({0: 6, 1: 6}, {2: 6}):
            data = labelled(counts)
            made.update(data.images, class_names(data))
        made.save(tmp_path / "late")
        home = ModelStore.open(tmp_path / "late")
        entries = ledger(home.documents(), home.current())
        assert [(entry.version, entry.is_current) for entry in entries] == [
            (None, False),
            (1, True),
        ]
        objects = sum(path.stat().st_size for path in (tmp_path / "late" / "objects").iterdir())
        document = (tmp_path / "late" / "versions" / "0001.json").stat().st_size
        assert entries[0].num_bytes is None
        assert entries[1].num_bytes == objects + document

    def test_another_threshold_judges_each_version_by_its_own_past(self, saved: Path) -> None:
        documents = ModelStore.open(saved).documents()
        # Everything is below 1, nothing below 0.
        low, high = (ledger(documents, 5, Threshold(initial=t, decay=1.0)) for t in (0.0, 1.0))
        assert [entry.would for entry in low] == [None, "grow", "grow", "grow", "grow"]
        assert [entry.would for entry in high] == [None] + ["compress"] * 4
        # One compression, and nothing is below. The rejected one is no part of version 5's past.
        decayed = ledger(documents, 5, Threshold(initial=1.0, decay=1e-3))
        assert [entry.would for entry in decayed] == [
            None,
            "compress",
            "grow",
            "compress",
            "compress",
        ]


class TestOtherThreshold:
    def test_what_is_not_given_is_the_learners_own(self, saved: Path) -> None:
        documents = ModelStore.open(saved).documents()
        assert other_threshold(documents, None, None) is None
        # The defaults are those of the paper: 0.6 and 0.96.
        assert other_threshold(documents, 0.3, None) == Threshold(initial=0.3, decay=0.96)
        assert other_threshold(documents, None, 0.5) == Threshold(initial=0.6, decay=0.5)

    def test_a_method_without_a_threshold_needs_both_numbers(self, saved: Path) -> None:
        (*_, last) = ModelStore.open(saved).documents()
        other = last.settings.model_copy(update={"method": ReplaySettings()})
        documents = [last.model_copy(update={"settings": other})]
        with pytest.raises(ValueError, match="replay has no threshold of its own: give both"):
            other_threshold(documents, 0.3, None)
        assert other_threshold(documents, 0.3, 0.5) == Threshold(initial=0.3, decay=0.5)

    def test_without_saturations_there_is_nothing_to_judge(self, tmp_path: Path) -> None:
        made = Learner.create(
            settings(ReplaySettings(base=recipe(), update=recipe())),
            shape=(3, SIZE, SIZE),
            directory=tmp_path / "replay",
        )
        for counts in ({0: 6, 1: 6}, {2: 6}):
            data = labelled(counts)
            made.update(data.images, class_names(data))
        with pytest.raises(ValueError, match="measured a saturation"):
            other_threshold(ModelStore.open(tmp_path / "replay").documents(), 0.5, None)


def test_the_seconds_of_interrupted_processes_count() -> None:
    work = (
        WorkDone("grow", 2, 10, seconds=Seconds(total=5.0, earlier=5.0)),
        WorkDone("compress", 2, 10, seconds=Seconds(total=4.0, earlier=1.5)),
    )
    update = UpdateRecord(
        task=1, new_class_names=(), outcome=Outcome(verdict="start"), work=work, seconds=3.0
    )
    assert update.all_seconds == 9.5
    assert update.past.seconds == update.past.past.seconds == update.past.all_seconds == 9.5
