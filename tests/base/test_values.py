"""Values of tensors, texts and numbers come back from bytes as they were."""

import math

import pytest
import torch

from grace.base import tensors
from grace.base.errors import DamagedError


def test_all_kinds_come_back() -> None:
    value = {
        "nothing": None,
        "numbers": [0.1, 1e-300, 2**40, -1, True],
        "text": "Größe\n\u2028",
        "deep": {"pair": (torch.tensor([[1.5, math.nan]]), torch.tensor(7, dtype=torch.uint8))},
        "empty": [{}, [], torch.empty(0, 3)],
    }
    found = tensors.decode_value(tensors.encode_value(value), "it")
    first, second = found["deep"].pop("pair")
    assert first.dtype == torch.float32
    assert first[0, 0] == 1.5
    assert math.isnan(first[0, 1])
    assert (second.dtype, second.item()) == (torch.uint8, 7)
    assert found["empty"].pop().shape == (0, 3)
    assert found == {
        "nothing": None,
        "numbers": [0.1, 1e-300, 2**40, -1, True],
        "text": "Größe\n\u2028",
        "deep": {},
        "empty": [{}, []],
    }


def test_what_has_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        tensors.encode_value({"loss": math.inf})
    with pytest.raises(AssertionError):
        tensors.encode_value(object())
    with pytest.raises(DamagedError, match="it is damaged"):
        tensors.decode_value(b"nothing", "it")
