"""``grace learn`` and ``grace doctor``: teach a learner a folder of images, or only examine it."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from grace.base.errors import GraceError
from grace.base.words import counted, in_seconds, named_versions
from grace.cli import options
from grace.cli.console import say, terminal
from grace.cli.facts import HIDDEN_OF_CLASSES, class_facts, gate_facts, why
from grace.cli.progress import RichProgress
from grace.cli.show import show
from grace.cli.versions import under_way
from grace.learner.call import LearnCall, LearnResult, drop_update
from grace.learner.gate import lost_classes
from grace.learner.learn import carry_out

_HIDDEN = HIDDEN_OF_CLASSES | {
    "model", "version", "status", "learnt_now", "in_use", "gate", "chosen", "changed_settings",
    "removed_versions", "update",
}  # fmt: skip
"""Facts for programs; the page says them in sentences, or not at all."""


_Images = Annotated[
    Path | None,
    options.argument(
        metavar="IMAGES",
        help="Folder with a folder of images for each class, or with train/ and test/ of such "
        "folders. Only new images are needed.",
    ),
]
_Texts = Annotated[
    list[str] | None,
    options.argument(
        metavar="KEY=VALUE",
        help="Settings, such as method=der, gate.min_new=50 or data.skip_unreadable=true ('grace "
        "show folder' lists them). For an existing learner they are changes, saved with the "
        "update ('grace set MODEL' lists those that can change).",
    ),
]
_Model = Annotated[Path | None, options.option(metavar="MODEL", help="Directory of the learner.")]
_Experiment = Annotated[
    str | None, options.option(help="Experiment to start from. Default: chosen for the images.")
]
_MaxMb = Annotated[
    float | None,
    options.option(metavar="MB", help="Ceiling on the learner in 10⁶ bytes, memory.max_mb."),
]
_MaxDiskMb = Annotated[
    float | None,
    options.option(
        min=0, metavar="MB", help="Remove the oldest versions beyond so many 10⁶ bytes."
    ),
]
_Minutes = Annotated[
    float | None,
    options.option(metavar="MINUTES", help="Most minutes of an update (3), budget.minutes."),
]
_MaxDrop = Annotated[
    float | None,
    options.points(help="Reject this update if old classes lose more; for all: gate.max_drop."),
]
_Discard = Annotated[bool, typer.Option("--discard", help="Drop an interrupted update first.")]
_Again = Annotated[bool, typer.Option("--again", help="Learn images that were learnt already.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only examine, as 'grace doctor'.")]


def learn(
    context: typer.Context,
    images: _Images = None,
    texts: _Texts = None,
    *,
    model: _Model = None,
    experiment: _Experiment = None,
    max_mb: _MaxMb = None,
    max_disk_mb: _MaxDiskMb = None,
    minutes: _Minutes = None,
    max_drop: _MaxDrop = None,
    discard: _Discard = False,
    again: _Again = False,
    dry_run: _DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Teach a learner new classes, or fresh images of known ones; the first call makes it.

    Called again after an interruption, it continues where it stopped. 'grace doctor' (or --dry-run)
    only examines the images and exits with 2 if they would be refused.
    """
    is_dry = dry_run or context.info_name == "doctor"
    shorts = {"memory.max_mb": max_mb, "budget.minutes": minutes}
    overrides = [f"{key}={value:.15g}" for key, value in shorts.items() if value is not None]
    overrides += texts or ()
    if images is None:
        _drop(model, wanted=discard and not is_dry)
        return
    if model is None and not is_dry:
        raise GraceError("which learner?", "give its directory by --model")
    call = LearnCall(
        model=model,
        images=images,
        overrides=overrides,
        experiment=experiment,
        max_drop=max_drop,
        discard=discard,
        again=again,
        max_disk_mb=max_disk_mb,
        dry_run=is_dry,
    )
    if is_dry:
        _examine(call, as_json=as_json)
        return
    with RichProgress(terminal(err=True)) as progress:
        result = carry_out(call, progress)
    if as_json or result.is_new or result.is_rejected:
        title, after = _headline(result), list(_notes(result))
        show(_facts(result), as_json=as_json, title=title, hide=_HIDDEN, after=after)
    else:
        say(_headline(result), *_removed(result))
    if result.is_rejected:
        raise typer.Exit(3)


def _drop(model: Path | None, *, wanted: bool) -> None:
    if model is None or not wanted:
        raise GraceError("no images are given", "give the folder of the new images")
    what = "dropped the" if drop_update(model) else "there is no"
    say(f"{what} interrupted update of '{model}'")


def _facts(result: LearnResult) -> dict[str, Any]:
    """Return what an update did: shares lie in [0, 1]."""
    document = result.document
    update, names = document.history[-1], document.class_names
    before = document.history[-2] if len(document.history) > 1 else None
    accuracy, fresh = update.accuracy, {*update.new_class_names, *update.revived_class_names}
    return {
        "model": result.model,
        "version": document.number,
        "status": document.status,
        "learnt_now": result.is_new,
        "in_use": result.in_use,
        "method": document.settings.method.name,
        "new_classes": update.new_class_names,
        "revived_classes": update.revived_class_names,
        "refreshed_classes": [name for name in result.class_names if name not in fresh],
        "num_classes": len(document.live_class_names),
        "num_images": update.num_images,
        "num_held_out": accuracy.num_old + accuracy.num_new,
        "num_exemplars": update.num_exemplars,
        "why": why(update),
        "backbones": _change(*update.num_backbones),
        "parameters": _change(*update.num_parameters),
        "bytes": _change(before.num_bytes if before else 0, update.num_bytes),
        "max_mb": document.settings.memory.max_mb,
        "accuracy_of_old": _change(accuracy.old_before, accuracy.old_after),
        "accuracy_of_new": accuracy.new_after,
        "compression_cost": accuracy.compression_cost,
        "calibration_error": _change(*update.calibration_error or (None, None)),
        "classes": class_facts(accuracy, names),
        "gate": gate_facts(update.rulings, names),
        "update": update,
        "changed_settings": document.changed,
        "chosen": result.chosen,
        "removed_versions": result.pruned,
    }


def _change(before: float | None, after: float | None) -> dict[str, float | None] | None:
    return None if after is None else {"before": before, "after": after}


def _headline(result: LearnResult) -> str:
    document, update, name = result.document, result.document.history[-1], f"'{result.model}'"
    if result.is_rejected:
        gone = "with this update was removed" if document.number in result.pruned else "holds it"
        return (
            f"Rejected{'' if result.is_new else ' already'}: {name} stays at version "
            f"{result.in_use}, version {document.number} {gone}"
        )
    if result.is_new:
        num_new, num_lost = len(update.new_class_names), len(lost_classes(update.accuracy))
        what = counted(num_new, "new class", "new classes") if num_new else "fresh images"
        lost = f"; {counted(num_lost, 'class', 'classes')} lost accuracy" if num_lost else ""
        took = in_seconds(update.all_seconds)
        return f"Learnt {what} in {took}: {name} is at version {result.in_use}{lost}"
    what = f"{name} has learnt these images already, as version {document.number}"
    if result.was_in_use != result.in_use:
        return f"{what}, which is in use again"
    return f"{what}: nothing to do (--again learns them once more)"


def _notes(result: LearnResult) -> Iterator[str]:
    """Yield the sentences below the facts: choices, the gate, what to do next."""
    document, model = result.document, shlex.quote(str(result.model))
    yield from result.chosen
    yield from (f"settings   {change}" for change in document.changed)
    rulings = document.history[-1].rulings
    yield from (f"gate       {own.words(document.class_names)}" for own in rulings)
    yield from _removed(result)
    if document.number in result.pruned:
        yield "to keep it, give a larger --max-disk-mb"
    elif result.is_rejected:
        yield f"use it anyway   grace rollback {model} {document.number}"
    else:
        yield f"ask it    grace predict {model} IMAGES"
        if document.parent is not None and document.parent not in result.pruned:
            yield f"go back   grace rollback {model} {document.parent}"


def _removed(result: LearnResult) -> list[str]:
    gone = result.pruned
    return [f"removed    {named_versions(gone)}, for --max-disk-mb"] if gone else []


def _examine(call: LearnCall, *, as_json: bool) -> None:
    if call.store is not None and not call.discard:
        say(*under_way(call.store), err=True)
    found = call.examine()
    chosen = call.chosen if found.num_images else ()
    keys = ("severity", "text", "where", "remedy")
    facts = {
        **asdict(found),
        "ready": found.is_ready,
        "verdict": found.verdict,
        "findings": [{name: getattr(own, name) for name in keys} for own in found.findings],
        "chosen": chosen,
    }
    title = f"{call.images}: {counted(found.num_images, 'image')}"
    hide = {"ready", "verdict", "chosen", "num_images", "findings.where"}
    show(facts, as_json=as_json, title=title, hide=hide, after=[*chosen, found.verdict])
    if not found.is_ready:
        raise typer.Exit(2)
