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

from support.contract import keeps_exemplars, trains
from support.two_processes import LEFT_OVER, METHODS, STREAM

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
        [sys.executable, "-m", "support.two_processes", str(written)],
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


@pytest.mark.parametrize("variant", METHODS)
def test_a_method_learns_what_one_process_would(found: Found, variant: str) -> None:
    one, two = (process["taught"][variant] for process in found)
    items = {entry["item"] for entry in one["gradients"]}
    if not METHODS[variant].traits.trains_backbone:
        # Its head alone trains, on features; nearest class means do not train at all.
        assert items == ({"head"} if trains(variant) else set())
    else:
        assert items >= {"base"}
    sizes = {entry["images"] for entry in one["gradients"]}
    assert not items or LEFT_OVER in sizes
    assert all(size % 2 for size in sizes)
    for entry in one["gradients"]:
        assert entry["largest"] > 1e-4, entry
        assert entry["difference"] < 1e-5 * max(1, entry["largest"]), entry
    # The processes stay the same.
    assert len(set(one["weights"])) == len(STREAM)
    for fact in ("weights", "exemplars", "losses"):
        assert one[fact] == two[fact]
    if keeps_exemplars(variant):
        assert [len(kept) for kept in one["exemplars"]] == [2, 4]


def test_small_works_in_which_the_processes_differ_end_alike(found: Found) -> None:
    one, two = (process["small works"] for process in found)
    for works in (one, two):
        # The mean of two halves' means is the mean of all, of which batch norm takes a tenth.
        expected, told = works["means"]
        assert max(map(abs, expected)) > 0.01
        assert told == pytest.approx(expected, rel=1e-5, abs=1e-6)
        # Of 12 images, 7 have the label 1.
        assert works["losses"]["label"] == pytest.approx(7 / 12)
        assert works["told"] == {"rank": 0, "tensor": [0, 7], "pair": [1.5, None]}
        assert works["error"] == (
            "loss 'bad' is not finite in phase 'bad', epoch 1, batch 2: lower the learning rate of "
            "this phase's recipe, or its weight_decay"
        )
    # The second one's weights were larger by 1; steps are of a millionth.
    assert one["head"] == two["head"]
    assert one["head"] == pytest.approx(one["head before"], abs=1e-3)
    # Dropout differs, and what an objective draws does not.
    (dropout, drawn), (other, same) = one["noise"], two["noise"]
    assert dropout != other
    assert drawn == same


class TestRuns:
    def test_all_return_the_record_that_one_writes(self, found: Found) -> None:
        one, two = (process["runs"]["straight"] for process in found)
        assert one == two
        assert (one["status"], one["processes"], len(one["tasks"])) == ("finished", 2, 3)
        assert [task["verdict"] for task in one["tasks"]] == ["start", "grow", "compress"]

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


GONE = "another process has ended or cannot be reached: "
STOPPED = [2, -signal.SIGTERM]  # The second one waits to be told to stop.
# What the first process says, and the second; their exit codes; the record's status.
FAILURES = {
    "no_data": (r"error: '\S+nothing' does not exist: [^\n]*\n", "", STOPPED, None),
    # Said once, though the first process is a second late to record it.
    "full": (r"(?s).*task 1/5.*error: ([^\n]*)\n.*", "", STOPPED, "failed"),
    # After half a second, in which the first one might have failed too.
    "alone": (
        rf"(?s).*error: ({GONE}look at what it, or torchrun, printed)\n",
        "error (process 1): only here\n",
        [2, 2],
        "failed",
    ),
    "other_settings": (
        "error: the settings of process 1 are not those of process 0: give all processes the same "
        "settings\n",
        "",
        STOPPED,
        None,
    ),
    "other_data": (
        "error: the images of process 1 are not those of process 0: give all processes the same "
        "images\n",
        "",
        STOPPED,
        None,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_goes_wrong_is_said_once(folder: Path, name: str) -> None:
    first, second, codes, status = FAILURES[name]
    ended = json.loads((folder / "failed.json").read_text())[name]
    said = re.fullmatch(first, ended["said"][0])
    assert said, ended["said"][0]
    assert ended["said"][1] == said.expand(second)
    assert ended["codes"] == codes
    assert ended["record"][0] == status
    if status:
        assert ended["record"][1] == said[1]
