"""Exports to ONNX that read torch's table of operators once, and not for a second at each file."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest


@cache
def _read_once() -> Any:
    # Late: this import takes seconds, and not every worker exports.
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry, staticmethod(cache(ONNXRegistry.from_torchlib))


@pytest.fixture(scope="module", autouse=True)
def operators_once() -> Iterator[None]:
    registry, read = _read_once()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_torchlib", read)
        yield
