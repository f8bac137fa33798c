from typing import get_args

import pytest

from grace.settings.registry import (
    BACKBONES,
    BUILT_IN,
    DATASETS,
    METHOD_SETTINGS,
    METHODS,
    Kind,
    MethodSettings,
    entries,
    resolve,
)
from grace.settings.traits import ThresholdRule


def test_every_method_with_settings_is_registered() -> None:
    models = get_args(get_args(MethodSettings)[0])
    assert [model.model_fields["name"].default for model in models] == list(METHODS)
    assert tuple(METHOD_SETTINGS.values())[: len(BUILT_IN)] == BUILT_IN


def test_targets_name_a_class_of_their_own_file() -> None:
    for name in list(METHODS)[: len(BUILT_IN)]:
        assert str(METHODS[name].target).startswith(f"grace.methods.{name}:")


def test_names_are_described() -> None:
    for kind in (METHODS, DATASETS, BACKBONES):
        assert all(entry.description for entry in kind.values())


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'grase'.*'grace'"):
        resolve("method", "grase")
    with pytest.raises(ValueError, match="known: digits, cifar10"):
        resolve("dataset", "zzz")


@pytest.mark.parametrize("kind", ["method", "dataset", "backbone"])
def test_whatever_is_registered_can_be_imported(kind: Kind) -> None:
    assert all(callable(resolve(kind, name)) for name in entries(kind))
    assert resolve("backbone", "timm/resnet10t") is resolve("backbone", "timm/<model>")


def test_only_what_grows_by_a_threshold_has_a_rule() -> None:
    # GRACE's paper: τ₁ = 0.6, ρ = 0.96.
    rules = {
        name: model.model_validate({}).threshold_rule for name, model in METHOD_SETTINGS.items()
    }
    assert rules.pop("grace") == ThresholdRule(initial=0.6, decay=0.96)
    assert set(rules.values()) == {None}


def test_published_settings_all_have_an_effect() -> None:
    idle = {
        name: model.model_validate({}).idle_settings() for name, model in METHOD_SETTINGS.items()
    }
    assert all(found == {} for found in idle.values()), idle
