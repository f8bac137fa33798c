from typing import get_args

import pytest

from grace.configs.methods import MethodSettings
from grace.configs.registry import DATASETS, METHODS, entries, resolve


def test_every_method_with_settings_is_registered() -> None:
    models = get_args(get_args(MethodSettings)[0])
    assert {model.model_fields["name"].default for model in models} == set(METHODS)


def test_targets_name_a_class_of_their_own_file() -> None:
    targets = {name: entry.target for name, entry in METHODS.items()}
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
