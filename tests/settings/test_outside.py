"""Methods of other packages: what is sound is taken, what is not costs that package alone."""

from pathlib import Path

import pytest

from grace.settings.registry import BUILT_IN
from support import one_process
from support.outside_packages import example, installed, python

SETTINGS = """
from typing import Literal
from grace.settings.methods import AnyMethodSettings
from grace.settings.traits import Traits

class Sound(AnyMethodSettings):
    summary = "frozen features, no recipe at all"
    implementation = "sound.method:Sound"
    traits = Traits(memory="none")
    name: Literal["sound"] = "sound"
    ridge: float = 1.0

class Der(Sound):
    name: Literal["der"] = "der"

class Greedy(Sound):
    name: Literal["greedy"] = "greedy"
    needed: int

class Silent(AnyMethodSettings):
    name: Literal["silent"] = "silent"

class Traitless(Sound):
    traits = None
    name: Literal["traitless"] = "traitless"

class Hidden(Sound):
    summary = "two\\nlines"
    name: Literal["hidden"] = "hidden"

word = "text"
"""

BROKEN = {
    # Entry point, and what is said of it.
    "gone": ("no_such_package.settings:Gone", "ModuleNotFoundError: No module named"),
    "raises": ("raises:Settings", "RuntimeError: two lines"),
    "exits": ("exits:Settings", "SystemExit: 3"),
    "absent": ("sound.settings:Absent", "AttributeError"),
    "word": ("sound.settings:word", "is no settings model: derive it from"),
    "other": ("sound.settings:Sound", 'its settings need \'name: Literal["other"]'),
    "greedy": ("sound.settings:Greedy", "its settings need defaults that are valid: ('needed',)"),
    "silent": ("sound.settings:Silent", "its settings need a summary"),
    "hidden": ("sound.settings:Hidden", "its settings need a summary"),
    "traitless": ("sound.settings:Traitless", "the traits of its settings are none"),
    "../up": ("sound.settings:Sound", "a method's name has small letters"),
    "malformed": ("no place at all", "fails"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    files = {
        "sound/__init__.py": "",
        "sound/settings.py": SETTINGS,
        "raises.py": "raise RuntimeError('two\\nlines \\x1b[2J')",
        "exits.py": "raise SystemExit(3)",
    }
    installed(site, "sound", {"sound": "sound.settings:Sound"}, files)
    installed(site, "broken", {name: place for name, (place, _) in BROKEN.items()}, {})
    installed(site, "thief", {"der": "sound.settings:Der"}, {})
    installed(site, "one", {"twice": "sound.settings:Sound"}, {})
    installed(site, "two", {"twice": "sound.settings:Sound"}, {})
    return site


def test_a_broken_package_costs_its_method_alone(site: Path) -> None:
    listed = python("-m", "grace", "list", "methods", paths=(site,))
    assert listed.returncode == 0, listed.stderr
    rows = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
    assert len(rows) == len(BUILT_IN) + 1
    assert list(rows)[-1] == "sound"
    assert rows["der"] == "one new backbone per task beside the frozen old ones"
    assert rows["sound"] == "frozen features, no recipe at all"

    notes = listed.stderr.splitlines()
    assert len(notes) == len(BROKEN) + 2
    assert all(note.isprintable() and len(note) < 320 for note in notes)
    for name, (_, says) in BROKEN.items():
        (note,) = (note for note in notes if f"method '{name}'" in note)
        assert note.startswith(f"warning: method '{name}' cannot be used: package 'broken': ")
        assert says in note
    assert "warning: method 'der' of 'thief' is left out: grace has its own" in notes
    twice = "'one' and 'two' both bring it: uninstall one of them"
    assert f"warning: method 'twice' cannot be used: {twice}" in notes


def test_asking_for_a_method_that_cannot_be_used(site: Path) -> None:
    ends = one_process.calls(
        ("show", "method=gone"),
        ("show", "method=twice"),
        ("compare", "digits", "--methods", "grace,gone"),
        ("learn", "images", "--model", "model", "method=gone"),
        paths=(site,),
    )
    assert len(ends) == 4
    for end in ends:
        assert end.exit_code == 2
        (line,) = end.stderr.splitlines()
        assert "cannot be used: " in line
        assert "no_such_package" in line or "uninstall one of them" in line


def test_a_method_without_a_recipe_has_settings_and_messages(site: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("parent: digits\nmethod: sound\nmethods: {sound: {ridge: 3}, gone: {x: 1}}\n")
    shown, preset, misspelt, wrong, idle = one_process.calls(
        ("show", "method=sound", "method.ridge=2", "--yaml"),
        ("show", own, "--yaml"),
        ("show", "method=sound", "method.rigde=2"),
        ("show", "method=sound", "method.ridge=x"),
        ("show", "method=sound", "memory.size=5"),
        paths=(site,),
    )
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "method:\n  name: sound\n  ridge: 2.0\n" in shown.stdout
    assert "  ridge: 3.0\n" in preset.stdout
    assert "method.rigde: no such setting; did you mean 'method.ridge'?" in misspelt.stderr
    assert "method.ridge = 'x' should be a valid number" in wrong.stderr
    assert "memory.size has no effect: sound keeps no exemplars" in idle.stderr

    script = "from grace.settings.registry import resolve; resolve('method', 'sound')"
    missing = python("-c", script, paths=(site,))
    assert "method 'sound' cannot be used: 'sound.method:Sound' fails: No mod" in missing.stderr


def test_a_model_that_imports_torch_is_told(tmp_path: Path) -> None:
    # Found before the real one, which takes seconds.
    slow = {"torch.py": "", "slow.py": "import torch\n" + SETTINGS.replace("sound", "slow")}
    site = installed(tmp_path / "site", "slow", {"slow": "slow:Sound"}, slow)
    listed = python("-m", "grace", "list", "methods", paths=(site,))
    assert listed.stderr.splitlines() == [
        "warning: method 'slow' of 'slow' makes every command slow: its settings import torch"
    ]


def test_the_package_may_be_imported_before_the_registry(tmp_path: Path) -> None:
    """Its settings are derived from grace's models while grace's registry asks for them."""
    site = example(tmp_path / "site")
    for first in ("grace_aligned.settings", "grace_aligned.method", "grace.settings.registry"):
        script = (
            f"import sys, {first}\nfrom grace.settings.registry import METHOD_NOTES, METHODS\n"
            "assert 'aligned' in METHODS, METHOD_NOTES\nassert not METHOD_NOTES\n"
            f"assert ('torch' in sys.modules) == {first.endswith('method')}\n"
        )
        done = python("-c", script, paths=(site,))
        assert done.returncode == 0, done.stderr
