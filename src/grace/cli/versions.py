"""The verbs on a learner's versions: info, history, rollback, forget, prune and set."""

import shlex
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

import grace
from grace.base.errors import DamagedError, GraceError
from grace.base.lock import holder
from grace.base.words import in_bytes, named_versions
from grace.cli import options
from grace.cli.console import ask, emit, emit_json, say
from grace.cli.facts import class_facts, gate_facts
from grace.cli.show import aligned, show
from grace.learner import inventory
from grace.learner.call import refuse_too_low
from grace.learner.document import ImagesRef
from grace.learner.history import ledger
from grace.learner.setting_changes import effect, refuse_fixed
from grace.learner.store import ModelStore, bytes_of, to_drop
from grace.settings.load import ConfigError, describe_settings, load_experiment
from grace.settings.recipe import setting_text

_HIDDEN = {"path", "changes", "in_use.num_bytes.ceiling", "mean", "std", "settings"}


def info(
    model: options.Learner,
    json: options.AsJson = False,
    as_card: Annotated[
        bool, typer.Option("--card", help="Print a model card in Markdown instead.")
    ] = False,
) -> None:
    """Show a learner's classes, method, backbones and size, or its model card."""
    home = ModelStore.open(model)
    if as_card:
        emit(home.steadily(lambda: inventory.card_of(home)))
        return
    facts = inventory.facts(home)
    if not json:
        say(str(home.path), *under_way(home), "")
    settings = [[path, setting_text(value)] for path, value in facts["settings"].items()]
    after = ["settings that differ from their defaults", *aligned(settings)] * bool(settings)
    show(facts, as_json=json, hide=_HIDDEN, after=after)


def under_way(home: ModelStore) -> Iterator[str]:
    """Yield a line for a running or an interrupted update, and for an interrupted change."""
    running = holder(home.path / "lock") if home.pending() else None
    if running is not None:
        yield f"An update is running (process {running})."
    elif home.pending():
        yield (
            "An update was interrupted: learn the same images again to finish it, or "
            f"{to_drop(home.path)}."
        )
    if (unfinished := home.log.unfinished()) is not None:
        yield f"'grace {unfinished.kind}' was interrupted: run it again to finish it."


def history(model: options.Learner, json: options.AsJson = False) -> None:
    """List all updates of a learner, and what was forgotten, pruned or rolled back."""
    home = ModelStore.open(model)
    survey, changes = home.survey(), home.history()
    say(*(f"warning: {error}" for error in survey.damaged.values()), *under_way(home), err=True)
    current = survey.in_use and survey.in_use.number
    kept = {None, *(made.number for made in survey.documents)}
    rows, facts = list[dict[str, Any]](), dict[int, dict[str, Any]]()
    for change, update, names in ledger(changes):
        is_current, is_removed = change.version == current is not None, change.version not in kept
        facts[id(change)] = {
            **change.model_dump(mode="json"),
            "in_use": is_current,
            "removed": is_removed,
            "num_classes": len(names),
            "classes": class_facts(update.accuracy, names),
            "gate": gate_facts(update.rulings, names) if change.kind == "learn" else [],
        }
        outcome, accuracy = update.outcome, update.accuracy
        number = "–" if change.version is None else str(change.version)
        mark = " *" if is_current else " ×" if change.status == "rejected" else ""
        rows.append(
            {
                "version": (f"({number})" if is_removed else number) + mark,
                "from": change.parent,
                "classes": len(names),
                "verdict": "set" if change.kind == "set" else outcome.verdict,
                "saturation": outcome.saturation,
                "threshold": outcome.threshold,
                "backbones": update.num_backbones[1],
                "bytes": change.num_bytes,
                "old_accuracy": {"before": accuracy.old_before, "after": accuracy.old_after},
                "new_accuracy": accuracy.new_after,
                "date": change.date[:10],
            }
        )
    if json:
        emit_json([facts.get(id(own)) or own.model_dump(mode="json") for own in changes])
        return
    if not rows:
        say("nothing has been learnt yet")
        return
    below = ["accuracy: on held-out images; * in use, × rejected, ( ) removed"]
    others = [
        f"  {own.date[:16].replace('T', ' ')}  {own.words}"
        for own in changes
        if own.kind != "learn" or (own.update and own.update.revived_class_names)
    ]
    if others:
        below += ["", "changes other than new classes and images", *others]
    show(rows, after=below)


def rollback(
    model: options.Learner,
    version: Annotated[
        int,
        typer.Argument(
            metavar="VERSION", help="Number of the version; 'grace history' lists them."
        ),
    ],
) -> None:
    """Put a version of a learner in use: an earlier, a later, or a rejected one."""
    home = ModelStore.open(model)
    home.finish()
    wanted, current = home.document(version), None
    try:
        number = home.current()
        current = None if number is None else home.document(number)
    except DamagedError as error:
        # It is what people roll back from, not to.
        say(f"warning: {error}", err=True)
    if current is not None and current.number == version:
        say(f"'{model}' is at version {version} already: nothing to do")
        return
    grace.Learner.load(model, version).rollback(version)
    before, now = (own.live_class_names if own else () for own in (current, wanted))
    gone = [name for name in before if name not in now]
    back = [name for name in now if before and name not in before]
    failed = [own for own in wanted.history[-1].rulings if not own.is_passed]
    say(
        f"'{model}' is at version {version} now" + (f", it was at {number}" if current else ""),
        *([f"classes gone  {', '.join(gone)}"] if gone else []),
        *([f"classes back  {', '.join(back)}"] if back else []),
        *(f"it was {own.words(wanted.class_names)}" for own in failed),
        *([f"undo  grace rollback {shlex.quote(str(model))} {number}"] if current else []),
    )
    if home.pending():
        say(
            "warning: an interrupted update only goes on from the version it began with; "
            f"{to_drop(model)}",
            err=True,
        )


def forget(
    model: options.Learner,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Name of the class.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a class's images from every version, and hide it until it is learnt again.

    Its index stays, and the weights do not change: new images of a class of this name bring it
    back in its old place.
    """
    home, name = ModelStore.open(model), unicodedata.normalize("NFC", name)
    home.finish()
    versions = home.knowing(name)
    if not versions:
        say(f"'{model}' has forgotten '{name}' already: nothing to do")
        return
    if not yes:
        _make_sure(f"'{model}'", name, named_versions(versions))
    with home.changing():
        change = home.purge(name)
    which = named_versions(change.versions)
    say(f"forgot '{name}': removed its images from {which} of '{model}'")
    if change.damaged:
        say(f"removed {named_versions(change.damaged)}, which cannot be read")
    say("the weights are not unlearnt: what they know of it is hidden, not gone")


def _make_sure(model: str, name: str, which: str) -> None:
    if not sys.stdin.isatty():
        raise GraceError(
            f"'{name}' would be gone for good", "add --yes to forget it without asking"
        )
    say(
        f"The images of '{name}' in {which} of {model} are removed for good.",
        "No version predicts it any more; its index stays, for new images to revive it.",
        "The weights are not unlearnt: what they know of it is hidden, not gone.",
    )
    if not ask(f"Forget '{name}'?"):
        say("nothing was changed")
        raise typer.Exit


def prune(
    model: options.Learner,
    keep: Annotated[
        int | None,
        options.option(
            min=0, help="Number of newest versions to keep; the one in use stays in any case."
        ),
    ] = None,
    max_disk_mb: Annotated[
        float | None,
        options.option(
            min=0,
            metavar="MB",
            help="Remove the oldest versions until all together take at most so many megabytes "
            "(10⁶ bytes).",
        ),
    ] = None,
) -> None:
    """Remove old versions of a learner for good; the version in use stays as it is.

    Exit code 1 if what must stay takes more than --max-disk-mb.
    """
    if (keep is None) == (max_disk_mb is None):
        raise GraceError("what shall stay?", "give either --keep or --max-disk-mb")
    home = ModelStore.open(model)
    home.finish()
    before = bytes_of(home.survey().documents)
    gone = home.prune(keep=keep, max_mb=max_disk_mb or 0)
    after = bytes_of(home.survey().documents)
    if gone:
        say(f"removed {named_versions(gone)} of '{model}': {in_bytes(before - after)} freed")
    else:
        say(f"'{model}' has no version to remove: nothing to do")
    say(f"{in_bytes(after)} are left")
    if max_disk_mb is not None and after > max_disk_mb * 1_000_000:
        more = f"more than the {max_disk_mb:g} MB asked for"
        say(f"warning: the version in use alone takes {more}", err=True)
        raise typer.Exit(1)


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
    home = ModelStore.open(model)
    if not texts:
        rows = [
            [row.path, setting_text(row.value)]
            for row in describe_settings(home.settings())
            if effect(row.path) not in ("fixed", "none")
        ]
        table = aligned([["setting", "value"], *rows])
        say(*table, "", "'grace show folder' explains them")
        return
    home.finish()
    before = home.current()
    try:
        # What is wrong is said before torch is imported.
        wanted = load_experiment(home.settings(), texts)
        refuse_fixed(home.settings(), wanted, f"'{home.path}'")
        refuse_too_low(wanted, home.document(before) if before else None)
        learner = grace.Learner.load(model)
        changes = learner.change_settings(*texts)
    except ConfigError as error:
        error.remedy = f"'grace set {quoted}' lists what can be set"
        raise
    if not changes:
        say(f"'{model}' is set so already: nothing to do")
        return
    number = home.current()
    assert before
    assert number
    old, new = home.document(before), home.document(number)
    say(
        *(f"set {change}" for change in changes),
        f"'{model}' is at version {number} now: {in_bytes(new.num_bytes)}, "
        f"{_counts(old.exemplars, new.exemplars)} exemplars, "
        f"{_counts(old.validation, new.validation)} held-out images",
        f"undo  grace rollback {quoted} {before}",
    )


def _counts(*kept: Mapping[int, ImagesRef]) -> str:
    """Return how many images are kept, and how many were before if some were dropped."""
    numbers = (sum(ref.num for ref in refs.values()) for refs in kept)
    return " → ".join(map(str, dict.fromkeys(numbers)))
