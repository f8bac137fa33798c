"""Examine some 20,000 damaged and forged learners: what the suite does with fewer.

    python benchmarks/hostile_files.py

Each mutant is one small saved learner, spoilt in one way (``tests/support/hostile.py``): bytes of
any file, documents as trees, every field of their model, objects whose hashes are made right again,
links, pipes and folders in place of files, unfinished changes. It is described, loaded and asked
about two images; where an unfinished change is spoilt, that is asked for, too. Right is one line
that says what is wrong and where, or a sound answer. Wrong is any other error, a warning, ten
seconds of computing, a gigabyte, a file touched elsewhere, code that is run. Exits with 1 then.
"""

import os
import sys
from pathlib import Path

import pytest

TEST = Path(__file__).parents[1] / "tests" / "learner" / "test_hostile_learners.py"

if __name__ == "__main__":
    os.environ["GRACE_HOSTILE"] = "100"
    sys.exit(pytest.main([str(TEST), "-n", "0", "-v", "-k", "spoilt"]))
