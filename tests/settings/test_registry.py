import subprocess
import sys
from pathlib import Path

import pytest

import grace
from grace.settings.method import ThresholdRule
from grace.settings.registry import BACKBONES, DATASETS, METHODS, Kind, resolve

ENTRIES = {"method": METHODS, "dataset": DATASETS, "backbone": BACKBONES}


def test_every_file_with_settings_is_a_method() -> None:
    folder = Path(grace.__file__).parent / "methods"
    files = [path.stem for path in folder.glob("*.py") if "class Settings(" in path.read_text()]
    assert sorted(files) == sorted(METHODS)
    for name, method in METHODS.items():
        model = method.settings
        assert model().name == name
        made = resolve("method", name)
        # There is one model, whether it was read from the file or the file was imported.
        assert (made.Settings, made.traits) == (model, model.traits)


def test_the_methods_are_listed_and_their_settings_read_without_torch() -> None:
    script = (
        "import sys; from grace.settings.registry import METHODS\n"
        "assert all(method.settings() for method in METHODS.values())\n"
        "assert 'torch' not in sys.modules and 'grace.methods' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'grase'.*'grace'"):
        resolve("method", "grase")
    with pytest.raises(ValueError, match="known: digits, cifar10"):
        resolve("dataset", "zzz")


@pytest.mark.parametrize("kind", ["method", "dataset", "backbone"])
def test_whatever_is_registered_can_be_imported(kind: Kind) -> None:
    assert all(callable(resolve(kind, name)) for name in ENTRIES[kind])
    assert all(entry.description for entry in ENTRIES[kind].values())
    assert resolve("backbone", "timm/resnet10t") is resolve("backbone", "timm/<model>")


def test_only_what_grows_by_a_threshold_has_a_rule() -> None:
    # GRACE's paper: τ₁ = 0.6, ρ = 0.96.
    rules = {name: method.settings().threshold_rule for name, method in METHODS.items()}
    assert rules.pop("grace") == ThresholdRule(initial=0.6, decay=0.96)
    assert set(rules.values()) == {None}


def test_published_settings_all_have_an_effect() -> None:
    idle = {name: method.settings().idle_settings() for name, method in METHODS.items()}
    assert all(found == {} for found in idle.values()), idle
