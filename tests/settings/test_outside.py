"""Methods of other packages: what is sound is taken, what is not costs that package alone."""

from pathlib import Path

import pytest

from grace.settings.registry import METHODS
from support import one_process
from support.outside_packages import example, installed, python

SOUND = """\"\"\"Sound: frozen features, no recipe at all.\"\"\"
import torch
from a_package_that_is_not_there import helper
from grace.methods.method import Method
from grace.settings.method import AnyMethodSettings, Traits

class Sound(Method):
    traits = Traits(memory="none")

    class Settings(AnyMethodSettings):
        ridge: float = 1.0
"""
FILES = {
    "sound/__init__.py": "raise RuntimeError('imported')",
    "sound/method.py": SOUND,
    "greedy.py": SOUND.replace("ridge: float = 1.0", "needed: int"),
    "silent.py": SOUND.partition("\n")[2],
    "plain.py": SOUND.replace("Settings(AnyMethodSettings)", "Settings(object)"),
    "empty.py": '"""Empty: no method in it."""',
    "traitless.py": SOUND.replace('Traits(memory="none")', "None"),
    "raises.py": SOUND.replace("ridge: float = 1.0", "raise RuntimeError('two\\nlines \\x1b[2J')"),
    "exits.py": SOUND.replace("ridge: float = 1.0", "raise SystemExit(3)"),
    "ends.py": SOUND.replace("ridge: float = 1.0", "raise BaseException('the end')"),
    "broken.py": '"""Broken: no Python."""\nclass Broken(\n    class Settings(:\n',
}
BROKEN = {
    # Entry point, and what is said of it.
    "gone": ("no_such_package.settings", "is no module with a file"),
    "absent": ("sound.absent", "is no module with a file"),
    "compiled": ("math", "is no module with a file"),
    "raises": ("raises", "RuntimeError: two lines"),
    "exits": ("exits", "SystemExit: 3"),
    "ends": ("ends", "BaseException: the end"),
    "greedy": ("greedy", "ValidationError: 1 validation error for Settings needed Field required"),
    "silent": ("silent", "needs a docstring whose first line says what it is"),
    "plain": ("plain", "its Settings or traits are of no class of grace.settings.method"),
    "empty": ("empty", "has no class with a class Settings in it"),
    "traitless": ("traitless", "its Settings or traits are of no class of grace.settings.method"),
    "../up": ("sound.method", "a method's name has small letters"),
    "broken": ("broken", "SyntaxError: "),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    installed(site, "sound", {"sound": "sound.method"}, FILES)
    installed(site, "faulty", {name: place for name, (place, _) in BROKEN.items()}, {})
    installed(site, "thief", {"der": "sound.method"}, {})
    installed(site, "one", {"twice": "sound.method"}, {})
    installed(site, "two", {"twice": "sound.method"}, {})
    return site


def test_a_broken_package_costs_its_method_alone(site: Path) -> None:
    """No package is imported to be listed, nor is torch."""
    listed = python("-m", "grace", "list", "methods", paths=(site,))
    assert listed.returncode == 0, listed.stderr
    rows = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
    own = [name for name, file in METHODS.items() if file.module.startswith("grace.")]
    assert list(rows) == [*own, "sound"]
    assert rows["der"] == "one new backbone per task beside the frozen old ones"
    assert rows["sound"] == "frozen features, no recipe at all"

    notes = listed.stderr.splitlines()
    assert len(notes) == len(BROKEN) + 2
    assert all(note.isprintable() and len(note) < 320 for note in notes)
    for name, (_, says) in BROKEN.items():
        (note,) = (note for note in notes if f"method '{name}'" in note)
        assert note.startswith(f"warning: method '{name}' of 'faulty' cannot be used: ")
        assert says in note
    assert "warning: method 'der' of 'thief' cannot be used: grace has its own" in notes
    twice = "method 'twice' of 'one' and 'two' cannot be used: uninstall one of them"
    assert f"warning: {twice}" in notes


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
    shown, preset, idle = one_process.calls(
        ("show", "method=sound", "method.ridge=2", "--yaml"),
        ("show", own, "--yaml"),
        ("show", "method=sound", "memory.size=5"),
        paths=(site,),
    )
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "method:\n  name: sound\n  ridge: 2.0\n" in shown.stdout
    assert "  ridge: 3.0\n" in preset.stdout
    assert "memory.size has no effect: sound keeps no exemplars" in idle.stderr

    script = "from grace.settings.registry import resolve; resolve('method', 'sound')"
    missing = python("-c", script, paths=(site,))
    assert "method 'sound' cannot be used: 'sound.method:Sound' fails: RuntimeError: imported" in (
        missing.stderr
    )


def test_the_package_may_be_imported_before_the_registry(tmp_path: Path) -> None:
    """Its class and the registry have one model of its settings, whichever comes first."""
    script = (
        "from grace_aligned.aligned import Aligned\n"
        "from grace.settings.registry import METHODS, REFUSED_METHODS\n"
        "assert Aligned.Settings is METHODS['aligned'].settings, REFUSED_METHODS\n"
    )
    done = python("-c", script, paths=(example(tmp_path / "site"),))
    assert done.returncode == 0, done.stderr
