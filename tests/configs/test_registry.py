from collections.abc import Mapping
from typing import get_args

import pytest

from grace.configs.registry import (
    BUILT_IN,
    DATASETS,
    METHOD_SETTINGS,
    METHODS,
    MethodSettings,
    entries,
    resolve,
)
from grace.configs.traits import ThresholdRule, Traits


def test_every_method_with_settings_is_registered() -> None:
    models = get_args(get_args(MethodSettings)[0])
    assert [model.model_fields["name"].default for model in models] == list(METHODS)
    assert tuple(METHOD_SETTINGS.values())[: len(BUILT_IN)] == BUILT_IN


def test_targets_name_a_class_of_their_own_file() -> None:
    targets = {name: METHODS[name].target for name in TRAITS}
    assert targets["grace"] == "grace.methods.grace:Grace"
    assert targets["der"] == "grace.methods.der:DER"
    for name, target in targets.items():
        assert target is not None
        assert target.startswith(f"grace.methods.{name}:")


def test_names_are_described() -> None:
    assert all(entry.description for kind in (METHODS, DATASETS) for entry in kind.values())
    assert list(entries("dataset")) == ["digits", "cifar10", "cifar100", "imagenet100", "folder"]


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown method 'grase'; did you mean 'grace'"):
        resolve("method", "grase")
    with pytest.raises(ValueError, match="known: digits, cifar10"):
        resolve("dataset", "zzz")


# From the methods' papers, as docs/methods tells of them.
TRAITS: Mapping[str, Traits] = {
    "grace": Traits(freezes_old_network=True, learns_known_classes=True),
    "der": Traits(grows_every_task=True, freezes_old_network=True),
    "foster": Traits(freezes_old_network=True),
    "memo": Traits(grows_every_task=True, shares_trunk=True, freezes_old_network=True),
    "wa": Traits(freezes_old_network=True),
    "icarl": Traits(freezes_old_network=True, learns_known_classes=True),
    "replay": Traits(learns_known_classes=True),
    "ewc": Traits(memory="none", compares_new_classes_only=True),
    "finetune": Traits(memory="none", compares_new_classes_only=True),
    "joint": Traits(memory="all images", learns_known_classes=True),
    "dgr": Traits(freezes_old_network=True),
    "beef": Traits(grows_every_task=True, freezes_old_network=True),
    "tagfex": Traits(grows_every_task=True, freezes_old_network=True),
    "create": Traits(freezes_old_network=True, learns_known_classes=True),
}


def test_the_traits_of_every_method_of_this_package_are_checked() -> None:
    assert list(TRAITS) == list(METHODS)[: len(BUILT_IN)]


@pytest.mark.parametrize("name", TRAITS)
def test_methods_describe_themselves(name: str) -> None:
    assert METHOD_SETTINGS[name].traits == TRAITS[name]


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
