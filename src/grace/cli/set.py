"""``grace set``: change settings of a learner, such as its ceiling."""

import shlex
from collections.abc import Sequence
from typing import Annotated

import grace
from grace.base.words import in_bytes
from grace.cli import options
from grace.cli.columns import aligned
from grace.cli.console import say
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.learner.inventory import ClassEntry, InUse
from grace.learner.setting_changes import is_idle, shown, why_fixed
from grace.learner.store import ModelStore
from grace.settings.describe import describe_settings
from grace.settings.packaged import ConfigError
from grace.settings.setting_problems import WrongValue


def set_settings(
    model: options.Learner,
    texts: Annotated[
        list[str] | None,
        options.argument(
            metavar="KEY=VALUE",
            help="Settings, such as memory.max_mb=8 or gate.max_drop=2. Default: list those that "
            "can change.",
        ),
    ] = None,
) -> None:
    """Change settings of a learner: its ceiling, memory, threshold, gate and recipes.

    What it has learnt stays; images that no longer fit are dropped. The change is a new version;
    'grace rollback' takes it back.
    """
    quoted = shlex.quote(str(model))
    remedies = {
        "discard": f"drop it by 'grace learn --model {quoted} --discard'",
        "memory.max_mb": f"allow it by 'grace set {quoted} memory.max_mb={{value}}'",
    }
    with one_line_errors(remedies), one_line_warnings():
        home = ModelStore.open(model)
        if not texts:
            _list(home)
            return
        unfinished = home.finish()
        before = home.current()
        learner = grace.Learner.load(model)
        try:
            changes = learner.change_settings(*texts)
        except ConfigError as error:
            if not all(isinstance(problem, WrongValue) for problem in error.problems):
                error.remedy = f"'grace set {quoted}' lists what can be set"
            raise
        if not changes and unfinished is not None and unfinished.kind == "set":
            changes, before = unfinished.settings, home.document(unfinished.versions[0]).parent
        if not changes:
            say(f"'{model}' is set so already: nothing to do")
            return
        for change in changes:
            say(f"set {change}")
        number = home.current()
        assert before is not None
        assert number is not None
        old, new = InUse.of(home.document(before)), InUse.of(home.document(number))
        say(
            f"'{model}' is at version {number} now: {in_bytes(new.num_bytes.total)}, "
            f"{_images_kept(old.classes, new.classes)}"
        )
        say(f"undo  grace rollback {quoted} {before}")


def _images_kept(old: Sequence[ClassEntry], new: Sequence[ClassEntry]) -> str:
    """Say how many images a learner keeps, and how many it kept before if it dropped some."""
    kept = [sum(entry.num_exemplars or 0 for entry in classes) for classes in (old, new)]
    held = [sum(entry.num_held_out or 0 for entry in classes) for classes in (old, new)]
    text = " → ".join(map(str, dict.fromkeys(kept))) + " exemplars"
    return text if held[0] == held[1] else f"{text}, {held[0]} → {held[1]} held-out images"


def _list(home: ModelStore) -> None:
    """Print the settings that can change, with their values."""
    rows = [
        [row.path, shown(row.value)]
        for row in describe_settings(home.settings())
        if why_fixed(row.path) is None and not is_idle(row.path)
    ]
    for line in aligned([["setting", "value"], *rows]):
        say(line)
    say("", "'grace show folder' explains them")
