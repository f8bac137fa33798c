"""What a method is made of: a few verbs, and nothing of saving, counting, copying or forgetting."""

import inspect
from typing import Any

import pytest

from grace.methods.method import Method
from grace.methods.state import DeclaredState
from grace.settings.registry import resolve
from support.contract import VARIANTS, name_of

METHODS = sorted({name_of(variant) for variant in VARIANTS})
VERBS = {
    "__init__", "first_task", "later_task", "remember", "classifiers", "plan", "make_head",
}  # fmt: skip
"""What a method may say of itself."""
KEEPING = {name for name in dir(DeclaredState) if not name.startswith("_")} | {
    "save", "load", "copy", "digest", "parts", "keep",
}  # fmt: skip


def verbs_of(own: type[Any]) -> set[str]:
    """Functions and properties that a class itself defines."""
    kinds = (property, staticmethod, classmethod)
    return {n for n, v in vars(own).items() if inspect.isfunction(v) or isinstance(v, kinds)}


def test_the_contract_is_small() -> None:
    assert len(verbs_of(Method) - {"__init_subclass__"}) <= 15
    assert verbs_of(Method) >= VERBS


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_does_and_nothing_else(name: str) -> None:
    """Beside the verbs it has private helpers and properties of its own that read something."""
    method: type[Method] = resolve("method", name)
    inherited = set(dir(Method))
    for own in method.__mro__[: method.__mro__.index(Method)]:
        defined = verbs_of(own)
        assert defined & inherited <= VERBS, own
        assert not {verb.strip("_") for verb in defined} & KEEPING, own
        more = {verb for verb in defined - VERBS if not verb.startswith("_")}
        assert all(isinstance(vars(own)[verb], property) for verb in more), own
        dunder = {verb for verb in defined if verb.startswith("__")}
        assert dunder <= {"__init__"}, own
