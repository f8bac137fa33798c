"""What every test runs under, and the fixtures that all rooms share."""

import os

import pytest
from hypothesis import settings as hypothesis_settings

from synthetic_records import make_record as make_record

# A loaded machine is slow, not wrong: pytest's own timeout is the limit.
hypothesis_settings.register_profile("grace", deadline=None)
hypothesis_settings.load_profile("grace")

# Tiny tensors gain nothing from a second thread, and lose much where another process wants the
# core. torch reads this when a test first imports it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together, in one worker, the tests that share what is slow to make.

    Those of one file do; where they are made for every method, those of one variant.
    """
    for item in items:
        variant = getattr(item, "callspec", None) and item.callspec.params.get("variant")  # type: ignore[attr-defined]
        group = f"{item.path.stem}-{variant}" if variant else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
