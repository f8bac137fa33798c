import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = """
import ctypes
import sys
from grace.cli import app

app.app = lambda: None
app.main()
ctypes.CDLL(sys.argv[1])
"""
OPENMP = next((Path(torch.__file__).parent / "lib").glob("libgomp*"), None)


@pytest.mark.skipif(OPENMP is None, reason="this torch brings no GNU OpenMP")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "GOMP_SPINCOUNT = '10000'"),
        ({"GOMP_SPINCOUNT": "500"}, "GOMP_SPINCOUNT = '500'"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "GOMP_SPINCOUNT = '0'"),
    ],
)
def test_threads_that_wait_soon_sleep_unless_the_user_says_otherwise(
    given: dict[str, str], expected: str
) -> None:
    ours = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    asked = {"OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "1"}  # OpenMP itself answers.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(OPENMP)],
        env={**kept, **asked, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected in done.stderr
