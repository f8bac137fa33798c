"""What every test runs under, and the fixtures that all rooms share."""

import gc
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from support.synthetic_records import make_record as make_record

# A loaded machine is slow, not wrong: pytest's own timeout is the limit.
hypothesis_settings.register_profile("grace", deadline=None)
hypothesis_settings.load_profile("grace")

# Two workers and a hundred processes read the same sources: they are compiled once, also where the
# environment says that what is compiled shall not be kept.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What is imported while tests are collected stays: looking for garbage in it takes a quarter of
# the time.
gc.disable()

# Tiny tensors gain nothing from a second thread, and lose much where another process wants the
# core. torch reads this when a test first imports it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As grace itself does before it imports onnxruntime, which some tests import first.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes missing golden traces (tests/methods/test_golden.py)."""
    parser.addoption(
        "--golden", action="store_true", help="write the golden traces that are missing"
    )


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """Nothing is flushed to the disk: no test cuts the power, and flushing takes half its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, and end with what comes in small pieces: no worker waits."""
    long = ("test_torchrun", "test_nothing_lost", "test_hostile_learners", "test_image_attacks")
    pieces = ("test_contract", "test_golden")
    items.sort(key=lambda item: item.path.name.startswith(pieces) - item.path.name.startswith(long))


def pytest_collection_finish() -> None:
    """Look for garbage from now on, in what tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let go of all that was imported."""
    gc.unfreeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together, in one worker, the tests that share what is slow to make.

    Those of a file do; of the methods' contract and traces, those of a variant. (The marker
    ``xdist_group`` has no effect with pytest 9.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class BySharedWork(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            variant = re.search(r"/test_(?:contract\w*|golden)\.py::.*\[([\w-]+)", nodeid)
            return nodeid.partition("::")[0] + (f" {variant[1]}" if variant else "")

    return BySharedWork(config, log)
