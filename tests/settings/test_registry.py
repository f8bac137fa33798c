from pathlib import Path

import pytest

import grace
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


def test_published_settings_all_have_an_effect() -> None:
    idle = {name: method.settings().idle_settings() for name, method in METHODS.items()}
    assert all(found == {} for found in idle.values()), idle
