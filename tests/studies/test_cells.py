"""Which runs a comparison has."""

import pytest

from grace.settings.load import ConfigWarning
from grace.settings.registry import METHODS
from grace.studies.cells import cells_of


def test_every_method_with_every_seed_seed_by_seed() -> None:
    cells = cells_of("digits")
    assert [cell.seed for cell in cells] == [seed for seed in (1, 2, 3) for _ in METHODS]
    assert [cell.method for cell in cells] == list(METHODS) * 3
    assert len({cell.name for cell in cells}) == 3 * len(METHODS)
    for cell in cells:
        assert cell.settings.method.name == cell.method
        # All four seeds, so that class order, weights, data and exemplars differ between them.
        assert set(cell.settings.seeds.model_dump().values()) == {cell.seed}


def test_each_method_has_its_preset_and_what_is_said_of_all() -> None:
    overrides = ["memory.size=50", "methods.der.grow.epochs=7"]
    der, wa = cells_of("digits", overrides, ["der", "wa"], [5])
    assert (der.name, wa.name) == ("der-s5", "wa-s5")
    assert der.settings.memory.size == wa.settings.memory.size == 50
    # digits.yaml: 30 epochs for what distils, 10 for the others.
    assert der.settings.method.model_dump()["grow"]["epochs"] == 7
    assert wa.settings.method.model_dump()["update"]["epochs"] == 30


@pytest.mark.parametrize(
    ("overrides", "methods", "seeds", "message"),
    [
        ([], ["derr"], [1], r"no method 'derr'; did you mean 'der'\? \(known: grace, der, "),
        ([], ["der", ""], [1], "a method's name is empty: name methods as grace,der"),
        ([], ["der", "wa", "der"], [1], "method der is given twice"),
        ([], [], [1, 2, 1], "seed 1 is given twice"),
        ([], [], [], "a comparison needs at least one seed"),
        (["method=der"], [], [1], "'method=der' would give all runs one method: set methods"),
        (["seed=2"], [], [1], "'seed=2' would give all runs one seed: set seeds"),
        (["seeds.data=2"], [], [1], "'seeds.data=2' would give all runs one seed: set seeds"),
        (
            ["method.grow.epochs=3"],
            [],
            [1],
            "'method.grow.epochs=3' would hold for all methods: write methods.NAME.grow.epochs=…",
        ),
        (["memory.sizes=3"], ["der"], [1], "memory.sizes"),
    ],
)
def test_what_is_no_comparison_is_refused(
    overrides: list[str], methods: list[str], seeds: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cells_of("digits", overrides, methods, seeds)


def test_what_has_no_effect_for_any_method_is_told_once() -> None:
    with pytest.warns(ConfigWarning) as caught:
        # Finetune and EWC keep no exemplars, but others do.
        cells_of("digits", ["memory.size=50", "data.class_list=sorted"])
    assert [str(warning.message) for warning in caught] == [
        "data.class_list has no effect: it is imagenet100's"
    ]
