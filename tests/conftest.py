"""What every test runs under, and the fixtures that all rooms share."""

import os

from hypothesis import settings as hypothesis_settings

from synthetic_records import make_record as make_record

# A loaded machine is slow, not wrong: pytest's own timeout is the limit.
hypothesis_settings.register_profile("grace", deadline=None)
hypothesis_settings.load_profile("grace")

# Tiny tensors gain nothing from a second thread, and lose much where another process wants the
# core. torch reads this when a test first imports it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
