"""Settings that were added later leave the dumps of earlier versions as they were."""

import hashlib
import json
from typing import ClassVar

import pytest
from pydantic import Field

from grace.settings.load import load_experiment
from grace.settings.settings_model import Settings


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
        ("digits", "3a891336044e2d3bbdaa3677925a6a0c4825d27ba33b471ac2eacdb383848c13"),
        ("cifar100-b0i10", "a5dfbb125c14c662f3cd0a76f9d7868a43bdc3335f1368f2cf37e22dbad1f7f8"),
    ],
)
def test_dumps_of_earlier_versions_are_unchanged(name: str, digest: str) -> None:
    # In the order of their names, as fingerprints take them.
    text = json.dumps(load_experiment(name).model_dump(mode="json"), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == digest
