"""Several processes do what one does: what ``two_processes`` found."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from support.contract import VARIANTS, keeps_exemplars, trains
from support.two_processes import LEFT_OVER, STREAM, WHOLE_BATCHES

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()),
    reason="this build of torch has no gloo, by which processes on CPUs exchange",
)


Found = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the processes wrote, which are started once."""
    written = tmp_path_factory.mktemp("processes")
    done = subprocess.run(
        [sys.executable, "-m", "support.several_processes", str(written)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return written


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What each of the two processes found."""
    one, two = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    return one, two


@pytest.fixture(scope="module")
def failed(folder: Path) -> dict[str, Any]:
    """How runs that two processes could not finish ended."""
    ends: dict[str, Any] = json.loads((folder / "failed.json").read_text())
    return ends


@pytest.mark.parametrize("variant", VARIANTS)
class TestEveryMethod:
    def test_gradients_are_those_of_one_process(self, found: Found, variant: str) -> None:
        """With batch norm in eval mode, of whole odd batches and of ones with an empty slice."""
        gradients = found[0]["together"][variant]["gradients"]
        items = {entry["item"] for entry in gradients}
        if not VARIANTS[variant].traits.trains_backbone:
            # Its head alone trains, on features; nearest class means do not train at all.
            assert items == ({"head"} if trains(variant) else set())
        else:
            assert items >= {"base"}
        if not items:
            return
        sizes = {entry["images"] for entry in gradients}
        assert LEFT_OVER in sizes
        assert all(size % 2 for size in sizes)
        for entry in gradients:
            assert entry["largest"] > 1e-4, entry
            assert entry["difference"] < 1e-5 * max(1, entry["largest"]), entry

    def test_the_processes_stay_the_same(self, found: Found, variant: str) -> None:
        one, two = (process["together"][variant] for process in found)
        assert len(set(one["weights"])) == len(STREAM)
        assert one["weights"] == two["weights"]
        assert one["exemplars"] == two["exemplars"]
        assert one["losses"] == two["losses"]

    def test_one_process_would_herd_the_same_exemplars(self, found: Found, variant: str) -> None:
        mine = found[0]["together"][variant]
        if not keeps_exemplars(variant):  # None is herded: none kept, or all.
            assert mine["herded alone"] == []
            return
        assert [len(kept) for kept in mine["exemplars"]] == [2, 4]
        assert mine["exemplars"] == mine["herded alone"]

    def test_accuracy_is_that_of_one_process(self, found: Found, variant: str) -> None:
        """Each learns the classes that it can remember to 90 %, and the two end within 10 points.

        Without exemplars old classes are forgotten, some runs more than others.
        """
        traits = VARIANTS[variant].traits
        which = "new" if traits.memory == "none" and traits.trains_backbone else "all"
        together = found[0]["together"][variant]["accuracy"][which]
        (alone,) = (p["alone"][variant]["accuracy"][which] for p in found if variant in p["alone"])
        # The frozen backbone of the probe has random weights here.
        least = 0.9 if traits.trains_backbone else 0.8
        assert alone >= least
        assert together >= least
        assert together == pytest.approx(alone, abs=0.1)


class TestSmallWorks:
    """The processes differ, and end alike."""

    def test_running_statistics_are_averaged(self, found: Found) -> None:
        """The mean of two halves' means is the mean of all, of which batch norm takes a tenth."""
        for works in (process["small works"] for process in found):
            assert max(map(abs, works["before"])) > 0.01
            assert works["running mean"] == pytest.approx(works["before"], rel=1e-5, abs=1e-6)
            swept = works["swept"]
            assert swept["told"] == pytest.approx(swept["expected"], rel=1e-5, abs=1e-6)

    def test_losses_are_means_over_all_images(self, found: Found) -> None:
        """Of 12 images, 7 have the label 1."""
        for works in (process["small works"] for process in found):
            assert works["losses"]["label"] == pytest.approx(7 / 12)

    def test_weights_that_came_apart_are_the_first_ones_after_a_phase(self, found: Found) -> None:
        """The second one's were larger by 1; steps are of a millionth."""
        one, two = (process["small works"] for process in found)
        assert one["head"] == two["head"]
        assert one["head"] == pytest.approx(one["head before"], abs=1e-3)

    def test_dropout_differs_and_what_an_objective_draws_does_not(self, found: Found) -> None:
        (dropout, drawn), (other, same) = (process["small works"]["noise"] for process in found)
        assert dropout != other
        assert drawn == same

    def test_a_sweep_is_the_first_ones(self, found: Found) -> None:
        told = [process["small works"]["told"] for process in found]
        assert told == [{"rank": 0, "tensor": [0, 7], "pair": [1.5, None]}] * 2

    def test_a_bad_loss_anywhere_ends_all_with_the_same_words(self, found: Found) -> None:
        expected = (
            "loss 'bad' is not finite in phase 'bad', epoch 1, batch 2: lower the learning rate of "
            "this phase's recipe, or its weight_decay"
        )
        assert [process["small works"]["error"] for process in found] == [expected] * 2


class TestWholeBatches:
    """What compares the rows of a batch with each other is computed from all of them."""

    def test_every_kind_of_batch_was_seen(self, found: Found) -> None:
        for process, own in zip(found, (0, 1), strict=True):
            works = process["whole batches"]
            assert {tuple(work["case"][:3]) for work in works} == set(WHOLE_BATCHES)
            # 13 images by 5: batches of 5, 5 and 3, of which the last is the first process's.
            rows = [work["own rows"] for work in works if work["case"][:3] == [13, 5, 2]]
            assert rows == [[4, 4, 6], [6, 6, 6]][own]
            assert any(work["rows"][0] == 2 and work["case"][0] == 3 for work in works)

    def test_gradients_are_those_of_one_process(self, found: Found) -> None:
        for work in (work for process in found for work in process["whole batches"]):
            assert work["largest"] > 1e-2, work
            assert work["difference"] < 1e-5 * max(1, work["largest"]), work
            alone, together = work["losses"]
            assert together == pytest.approx(alone, rel=1e-5)

    def test_rows_and_noise_are_those_of_one_process_and_views_stand_together(
        self, found: Found
    ) -> None:
        for work in (work for process in found for work in process["whole batches"]):
            assert work["same"] == {"images": True, "labels": True, "noise": True}, work
            assert work["together"], work


class TestRuns:
    def test_all_return_the_record_that_one_writes(self, found: Found) -> None:
        one, two = (process["runs"]["straight"] for process in found)
        assert one == two
        assert (one["status"], one["processes"], len(one["tasks"])) == ("finished", 2, 3)
        assert [task["verdict"] for task in one["tasks"]] == ["start", "grow", "compress"]

    def test_the_first_one_is_heard(self, found: Found) -> None:
        first, second = (process["runs"]["heard"] for process in found)
        assert [first.count(event) for event in ("task_started", "task_finished")] == [3, 3]
        assert first.count("epoch_finished") == 2 * 4
        assert second == []

    @pytest.mark.parametrize(
        ("straight", "resumed"),
        [("straight", "resumed"), ("fisher", "fisher resumed")],
        ids=["within phases", "after a gradient sweep"],
    )
    def test_a_killed_run_goes_on_bit_for_bit(
        self, found: Found, straight: str, resumed: str
    ) -> None:
        for runs in (process["runs"] for process in found):
            assert runs[resumed]["tasks"] == runs[straight]["tasks"]
            assert runs[resumed]["weights"] == runs[straight]["weights"] != ""

    def test_a_finished_run_is_returned_to_all(self, found: Found) -> None:
        for runs in (process["runs"] for process in found):
            assert runs["again"] == {**runs["resumed"], "weights": ""}

    def test_a_run_that_fails_ends_once_the_record_says_why(self, found: Found) -> None:
        one, two = (process["runs"]["wild"] for process in found)
        assert one == two
        assert one["status"] == "failed"
        assert one["recorded"] == one["error"]
        assert "not finite in phase 'base', epoch 1" in one["error"]

    def test_a_command_prints_once(self, found: Found) -> None:
        first, second = (process["command"] for process in found)
        assert first["out"].count("Last") == first["out"].count("record") == 1
        assert first["err"].count("task 3/3: update") == 1
        assert second == {"out": "", "err": "", "code": 0}
        assert first["code"] == 0


class TestFailures:
    """What two processes of ``grace run`` say, and how they end, when something is wrong."""

    def test_an_error_of_the_first_process_alone_is_said_once(self, failed: dict[str, Any]) -> None:
        first, second = failed["no_data"]["said"]
        assert first.startswith("error: '")
        assert "nothing' does not exist: " in first
        assert first.count("\n") == 1
        assert second == ""
        # The second one waits to be told to stop, that the first one's end is seen first.
        assert failed["no_data"]["codes"] == [2, -signal.SIGTERM]

    def test_from_python_it_is_one_line_in_both(self, failed: dict[str, Any]) -> None:
        first, second = failed["occupied"]["said"]
        assert first.endswith("record exists already: choose another directory or remove it\n")
        assert second == (
            "PeerGoneError: another process has ended or cannot be reached: GraceError: " + first
        )

    def test_an_error_of_all_is_recorded_and_said_once(self, failed: dict[str, Any]) -> None:
        """Though the first process is a second late to record it."""
        first, second = failed["full"]["said"]
        assert "task 1/5" in first
        assert "error: " in first
        assert second == ""
        status, error = failed["full"]["record"]
        assert status == "failed"
        assert f"error: {error}\n" in first
        assert failed["full"]["codes"] == [2, -signal.SIGTERM]

    def test_an_error_of_another_process_alone_ends_all(self, failed: dict[str, Any]) -> None:
        """After half a second, in which the first one might have failed too."""
        first, second = failed["alone"]["said"]
        gone = "another process has ended or cannot be reached: look at what it, or torchrun, "
        assert second == "error (process 1): only here\n"
        assert first.endswith(f"error: {gone}printed\n")
        assert failed["alone"]["codes"] == [2, 2]
        assert failed["alone"]["record"] == ["failed", f"{gone}printed"]

    @pytest.mark.parametrize(
        ("run", "fact", "remedy"),
        [
            (
                "other_settings",
                "the settings of process 1 are not those of process 0",
                "give all processes the same settings",
            ),
            (
                "other_data",
                "the images of process 1 are not those of process 0",
                "give all processes the same images",
            ),
        ],
    )
    def test_processes_that_would_learn_different_things_are_refused(
        self, failed: dict[str, Any], run: str, fact: str, remedy: str
    ) -> None:
        first, second = failed[run]["said"]
        assert re.fullmatch(f"error: {fact}: {re.escape(remedy)}\n", first), first
        assert second == ""
        assert failed[run]["record"] == [None, None]
        assert failed[run]["codes"] == [2, -signal.SIGTERM]
