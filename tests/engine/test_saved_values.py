"""Values of tensors, texts and numbers come back from JSON and tensors as they were."""

import pytest
import torch

from grace.base.strict_json import dump, parse
from grace.engine.checkpoint import put_together, take_apart


def test_all_kinds_come_back() -> None:
    plain = {"nothing": None, "numbers": [0.1, 1e-300, 2**40, -1, True], "text": "Größe\n\u2028"}
    one, two = torch.tensor([[1.5]]), torch.tensor(7, dtype=torch.uint8)
    kept: dict[str, torch.Tensor] = {}
    value = plain | {"deep": {"pair": (one, [two])}, "empty": [{}, []]}
    described = parse(dump(take_apart(value, kept)), "it")
    found = put_together(described, kept)
    first, (second,) = found["deep"].pop("pair")
    assert first is one
    assert second is two
    assert found == plain | {"deep": {}, "empty": [{}, []]}


def test_what_would_come_back_as_something_else_is_no_value() -> None:
    for value in ({1: "a"}, {"a tensor": "0"}):
        with pytest.raises(AssertionError):
            take_apart([value], {})
    with pytest.raises(TypeError):
        dump(take_apart([object()], {}))
