"""``grace learn`` and ``grace doctor``: teach a learner a folder of images, or only examine it."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from grace.base.errors import GraceError
from grace.base.words import counted, in_seconds
from grace.cli import options
from grace.cli.console import say, terminal
from grace.cli.facts import HIDDEN_OF_CLASSES, class_facts, gate_facts, why
from grace.cli.progress import RichProgress
from grace.cli.show import show
from grace.cli.versions import under_way
from grace.learner.gate import lost_classes
from grace.learner.learn import Checked, examine_call
from grace.learner.learn import learn as learn_folder
from grace.learner.request import (
    LearnOptions,
    LearnResult,
    RequestedSettings,
    drop_update,
    resolved,
)

_HIDDEN = HIDDEN_OF_CLASSES | {
    "model", "version", "status", "learnt_now", "in_use", "max_drop", "max_class_drop", "min_new",
    "drop", "lost_classes", "merge_weight", "seconds", "gate", "temperature", "chosen", "verdict",
    "saturation", "threshold", "changed_settings", "accuracy.num_old", "accuracy.num_new",
    "accuracy.teacher", "accuracy.student", "removed_versions",
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
        help="Settings, such as method=der, backbone.name=resnet18, backbone.weights=timm, "
        "memory.size=500 or seed=2 ('grace show folder' lists them). For an existing learner "
        "they are changes, saved with the update ('grace set MODEL' lists those that can "
        "change).",
    ),
]
_Model = Annotated[Path | None, options.option(metavar="MODEL", help="Directory of the learner.")]
_Experiment = Annotated[
    str | None,
    options.option(
        help="Experiment whose settings a new learner starts from; without it they are chosen "
        "for the images and this machine."
    ),
]
_MaxMb = Annotated[
    float | None,
    options.option(
        metavar="MB",
        help="Largest size of one version in megabytes (10⁶ bytes), memory.max_mb; images of "
        "old classes fill it.",
    ),
]
_MaxDiskMb = Annotated[
    float | None,
    options.option(
        min=0,
        metavar="MB",
        help="Largest size of all versions together: afterwards the oldest are removed. "
        "Default: all are kept.",
    ),
]
_Minutes = Annotated[
    float | None,
    options.option(
        metavar="MINUTES",
        help="Time that training of an update should take at most (default: 3), "
        "budget.minutes; fewer epochs are trained then.",
    ),
]
_MaxDrop = Annotated[
    float | None,
    options.points(help="Reject an update that costs old classes more percentage points."),
]
_MaxClassDrop = Annotated[
    float | None, options.points(help="Likewise for every old class, if a paired test shows it.")
]
_MinNew = Annotated[
    float | None,
    options.percent(help="Reject an update that gets fewer percent of new classes' images right."),
]
_SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave unreadable images out.")
]
_SkipDuplicates = Annotated[
    bool, typer.Option("--skip-duplicates", help="Leave out images that are in two places.")
]
_Discard = Annotated[bool, typer.Option("--discard", help="Drop an interrupted update first.")]
_Again = Annotated[
    bool, typer.Option("--again", help="Learn images again that were learnt already.")
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only examine the images, as 'grace doctor'.")
]


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
    max_class_drop: _MaxClassDrop = None,
    min_new: _MinNew = None,
    skip_unreadable: _SkipUnreadable = False,
    skip_duplicates: _SkipDuplicates = False,
    discard: _Discard = False,
    again: _Again = False,
    dry_run: _DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Teach a learner new classes, or fresh images of known ones; the first call makes it.

    Called again after an interruption, it continues where it stopped. 'grace doctor' (or --dry-run)
    only examines the images and exits with 2 if they would be refused.
    """
    dry_run = dry_run or context.info_name == "doctor"
    how = LearnOptions(
        max_drop=max_drop,
        max_class_drop=max_class_drop,
        min_new=min_new,
        skip_unreadable=skip_unreadable,
        skip_duplicates=skip_duplicates,
        discard=discard,
        again=again,
        max_disk_mb=max_disk_mb,
    )
    shorts = {"memory.max_mb": max_mb, "budget.minutes": minutes}
    given = [f"{key}={value:.15g}" for key, value in shorts.items() if value is not None]
    requested = RequestedSettings(experiment, [*given, *(texts or ())])
    if dry_run:
        _examine(images, model, requested, how, as_json=as_json)
        return
    if model is None:
        raise GraceError("which learner?", "give its directory by --model")
    if images is None:
        _discard(model, wanted=discard)
        return
    with RichProgress(terminal(err=True)) as progress:
        result = learn_folder(model, images, requested, how, progress)
    title = _headline(result)
    if as_json or result.is_new or result.is_rejected:
        notes = list(_notes(result))
        show(_facts(result), as_json=as_json, title=title, hide=_HIDDEN, after=notes)
    else:
        say(title, *_removed(result))
    if result.is_rejected:
        raise typer.Exit(3)


def _discard(model: Path, *, wanted: bool) -> None:
    """Drop an interrupted update without learning anything."""
    if not wanted:
        raise GraceError("nothing to learn", "give the folder of the new images")
    was_there = drop_update(model)
    what = "dropped the interrupted update" if was_there else "there is no interrupted update"
    say(f"{what} of '{model}'")


def _facts(result: LearnResult) -> dict[str, Any]:
    """Return what an update did: shares lie in [0, 1], drops are percentage points."""
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
        "verdict": update.outcome.verdict,
        "why": why(update, document.settings),
        "saturation": update.outcome.saturation,
        "threshold": update.outcome.threshold,
        "merge_weight": update.outcome.merge_weight,
        "backbones": _change(*update.num_backbones),
        "parameters": _change(*update.num_parameters),
        "bytes": _change(before.num_bytes if before else 0, update.num_bytes),
        "max_mb": document.settings.memory.max_mb,
        "accuracy": accuracy.model_dump(mode="json", exclude={"classes"}),
        "classes": class_facts(accuracy, names),
        "lost_classes": [names[own.index] for own in lost_classes(accuracy)],
        "drop": accuracy.drop,
        "max_drop": update.max_drop,
        "max_class_drop": update.max_class_drop,
        "min_new": update.min_new,
        "gate": gate_facts(update.rulings, names),
        "temperature": update.temperature,
        "calibration_error": update.calibration_error and _change(*update.calibration_error),
        "compression_cost": accuracy.compression_cost,
        "seconds": update.all_seconds,
        "removed_versions": result.pruned,
        "changed_settings": [change.model_dump() for change in document.changed],
        "chosen": result.chosen,
    }


def _change(before: float, after: float) -> dict[str, float]:
    return {"before": before, "after": after}


def _headline(result: LearnResult) -> str:
    document, update, name = result.document, result.document.history[-1], f"'{result.model}'"
    if result.is_rejected:
        gone = document.number in result.pruned
        return (
            f"{'Rejected' if result.is_new else 'Rejected already'}: {name} stays at version "
            f"{result.in_use}, version {document.number} "
            + ("with this update was removed" if gone else "holds this update")
        )
    if result.is_new:
        num_new, num_lost = len(update.new_class_names), len(lost_classes(update.accuracy))
        what = counted(num_new, "new class", "new classes") if num_new else "fresh images"
        lost = f"; {counted(num_lost, 'class', 'classes')} lost accuracy" if num_lost else ""
        return (
            f"Learnt {what} in {in_seconds(update.all_seconds)}: {name} is at version "
            f"{result.in_use}{lost}"
        )
    if result.was_in_use != result.in_use:
        again = f"{name} has learnt these images already: version {document.number} is in use again"
        back = f"grace rollback {shlex.quote(str(result.model))} {result.was_in_use}"
        return again if result.was_in_use is None else f"{again} ('{back}' returns)"
    return (
        f"{name} has learnt these images already, as version {document.number}: nothing to do "
        "(--again learns them once more)"
    )


def _notes(result: LearnResult) -> Iterator[str]:
    """Yield the sentences below the facts: choices, the gate, what to do next."""
    document, model = result.document, shlex.quote(str(result.model))
    update = document.history[-1]
    yield from result.chosen
    yield from (f"settings   {change}" for change in document.changed)
    yield from (
        f"gate       {own['text']}" for own in gate_facts(update.rulings, document.class_names)
    )
    yield from _removed(result)
    if document.number in result.pruned:
        yield "to keep it, give a larger --max-disk-mb"
    elif result.is_rejected:
        yield f"use it anyway   grace rollback {model} {document.number}"
    else:
        yield f"ask it    grace predict {model} IMAGES"
        if document.parent is not None and document.parent not in result.pruned:
            yield f"go back   grace rollback {model} {document.parent}"


def _removed(result: LearnResult) -> Sequence[str]:
    numbers = ", ".join(map(str, result.pruned))
    return [f"removed    versions {numbers}, for --max-disk-mb"] if numbers else []


def _examine(
    images: Path | None,
    model: Path | None,
    requested: RequestedSettings,
    how: LearnOptions,
    *,
    as_json: bool,
) -> None:
    if images is None:
        raise GraceError("nothing to examine", "give the folder of the new images")
    call = resolved(model, images, requested, how, dry_run=True)
    if call.store is not None and not how.discard:
        say(*under_way(call.store), err=True)
    checked = examine_call(call)
    facts = _examined(checked)
    title = f"{images}: {counted(checked.found.num_images, 'image')}"
    verdict = [*checked.chosen, str(facts["verdict"])]
    hide = {"ready", "verdict", "chosen", "num_images"}
    show(facts, as_json=as_json, title=title, hide=hide, after=verdict)
    if not checked.found.is_ready:
        raise typer.Exit(2)


def _examined(checked: Checked) -> dict[str, Any]:
    found = checked.found
    return {
        "ready": found.is_ready,
        "verdict": found.verdict,
        **asdict(found),
        "findings": [
            {name: getattr(own, name) for name in ("severity", "text", "where", "remedy")}
            for own in found.findings
        ],
        "passes": checked.passes,
        "chosen": checked.chosen,
    }
