"""Settings that were added later leave the dumps of earlier versions as they were."""

import hashlib
from typing import ClassVar

import pytest
from pydantic import Field

from grace.configs._base import Settings
from grace.configs.load import load_experiment


class Step(Settings):
    lr: float = 0.1
    kind: str = "sgd"
    betas: tuple[float, ...] = (0.9,)

    _later: ClassVar[frozenset[str]] = frozenset({"kind", "betas"})


class Careful(Step):
    clip: float | None = None

    _later: ClassVar[frozenset[str]] = frozenset({"clip"})


class Whole(Settings):
    step: Step = Step()
    unusual: Step = Field(default_factory=lambda: Step(kind="adam", betas=(0.8,)))
    steps: tuple[Step, ...] = ()


def test_a_later_field_is_left_out_while_it_has_its_default() -> None:
    assert Step().model_dump() == {"lr": 0.1}
    assert Step(kind="adam").model_dump() == {"lr": 0.1, "kind": "adam"}
    assert Step(kind="sgd").model_dump_json() == '{"lr":0.1}'
    assert Step().model_dump(exclude={"lr"}) == {}
    assert Whole(steps=(Step(), Step(lr=1.0, kind="adam"))).model_dump()["steps"] == (
        {"lr": 0.1},
        {"lr": 1.0, "kind": "adam"},
    )


def test_an_extended_model_keeps_the_later_fields_of_what_it_extends() -> None:
    assert Careful().model_dump() == {"lr": 0.1}
    assert Careful(kind="adam", clip=1.0).model_dump() == {"lr": 0.1, "kind": "adam", "clip": 1.0}


@pytest.mark.parametrize(
    "step", [Step(), Step(kind="adam"), Step(kind="adamw"), Step(kind="sgd", betas=(0.5,))]
)
def test_a_section_says_what_its_usual_value_would_replace(step: Step) -> None:
    # Where nothing is said, the section ``unusual`` has adam: sgd, which Step itself leaves out,
    # must be said there, or a reader that completes sections would make adam of it.
    whole = Whole(unusual=step)
    dumped = whole.model_dump(mode="json")
    assert dumped["unusual"]["kind"] == step.kind
    assert dumped["unusual"]["betas"] == list(step.betas)
    assert dumped["step"] == {"lr": 0.1}
    assert Whole.model_validate(dumped) == whole


def test_a_complete_dump_leaves_nothing_out() -> None:
    dumped = Whole(steps=(Careful(),)).complete_dump()
    assert dumped["step"] == {"lr": 0.1, "kind": "sgd", "betas": [0.9]}
    assert dumped["unusual"]["kind"] == "adam"
    assert dumped["steps"] == [{"lr": 0.1, "kind": "sgd", "betas": [0.9]}]


def test_names_of_no_field_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="absent"):

        class Wrong(Settings):
            _later: ClassVar[frozenset[str]] = frozenset({"absent"})


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        # Taken before the first field was added later (version 0.1).
        ("digits", "0ab78dcc794ca13c468b897d84a5029bbe4268df6f09c93b181584cc6f7bd072"),
        ("cifar100-b0i10", "7458acd9eeab9bf1a744ec55b3298ef74fac51812071c52034cf518ce27967bd"),
    ],
)
def test_dumps_of_earlier_versions_are_unchanged(name: str, digest: str) -> None:
    text = load_experiment(name).model_dump_json()
    assert hashlib.sha256(text.encode()).hexdigest() == digest
