"""The output of ``grace info``: a page for people, or JSON for programs."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from grace.base.words import counted, in_bytes, in_count, in_percent, printable
from grace.cli.class_lines import predictor_text
from grace.cli.columns import aligned
from grace.learner.changes import Change
from grace.learner.inventory import InUse, Inventory
from grace.learner.running import RunningUpdate, running_update
from grace.learner.store import ModelStore
from grace.settings.describe import SettingRow, describe_settings


def as_lines(inventory: Inventory) -> Iterator[str]:
    """Yield the lines of the page: facts first, the classes last."""
    yield printable(str(inventory.path))
    unfinished = inventory.unfinished
    yield from _under_way(inventory.path, inventory.running, inventory.is_interrupted, unfinished)
    in_use = inventory.in_use
    if in_use is None:
        yield "Nothing has been learnt yet."
    facts = [*_versions(inventory), *_made_of(inventory)]
    if in_use is not None:
        facts += _assessed(in_use)
        predictor = in_use.last.predictor
        facts += [["predictor", predictor_text(predictor)]] if predictor else []
        facts += _sizes(inventory, in_use)
    yield ""
    yield from aligned(facts)
    settings = [[f"  {row.path}", printable(_plain(row.value))] for row in _changed(inventory)]
    if settings:
        yield from ("", "settings that differ from their defaults", *aligned(settings))
    if in_use is not None:
        yield ""
        yield from _classes(in_use)


def under_way(store: ModelStore) -> Iterator[str]:
    """Yield a line for a running update or an interrupted one, and for an interrupted change."""
    running, unfinished = running_update(store.path), store.log.unfinished()
    yield from _under_way(store.path, running, store.pending(), unfinished)


def _under_way(
    path: Path, running: RunningUpdate | None, is_interrupted: bool, unfinished: Change | None
) -> Iterator[str]:
    model = shlex.quote(printable(str(path)))
    if running is not None:
        yield _running(running)
    elif is_interrupted:
        yield (
            "An update was interrupted: learn the same images again to finish it, or drop it by "
            f"'grace learn --model {model} --discard'."
        )
    if unfinished is not None:
        yield f"'grace {unfinished.kind}' was interrupted: run it again to finish it."


def as_json(inventory: Inventory) -> dict[str, object]:
    """Return an inventory as JSON values; numbers are not rounded."""
    in_use = inventory.in_use
    return {
        "path": str(inventory.path),
        "versions": list(inventory.versions),
        "rejected_versions": list(inventory.rejected),
        "damaged_versions": list(inventory.damaged),
        "interrupted_update": inventory.is_interrupted and inventory.running is None,
        "running_update": asdict(inventory.running) if inventory.running else None,
        "interrupted_change": inventory.unfinished.kind if inventory.unfinished else None,
        "changes": [change.model_dump(mode="json") for change in inventory.changes],
        "num_bytes_of_all_versions": inventory.num_bytes,
        "method": inventory.settings.method.name,
        "backbone": inventory.settings.backbone.name,
        "shape": list(inventory.shape),
        "mean": list(inventory.mean),
        "std": list(inventory.std),
        "settings": {row.path: row.value for row in _changed(inventory)},
        "in_use": None if in_use is None else _version_in_use(inventory, in_use),
    }


def _running(update: RunningUpdate) -> str:
    line = f"An update is running (process {update.process})"
    if not update.work:
        return f"{line}."
    epochs = "" if update.epochs is None else f", epoch {update.epochs[0]} of {update.epochs[1]}"
    return f"{line}: {update.work}{epochs}, as saved at {_minute(update.saved)}."


def _version_in_use(inventory: Inventory, in_use: InUse) -> dict[str, object]:
    outcome = in_use.assessed.outcome if in_use.assessed else None
    max_mb = inventory.settings.memory.max_mb
    return {
        "version": in_use.document.number,
        "grace_version": in_use.document.grace_version,
        "created": in_use.created,
        "updated": in_use.document.created,
        "num_updates": len(in_use.document.history),
        "num_backbones": in_use.last.num_backbones[1],
        "num_parameters": in_use.last.num_parameters[1],
        "saturation": outcome.saturation if outcome else None,
        "threshold": outcome.threshold if outcome else None,
        "num_bytes": {
            "weights_and_method_state": in_use.num_bytes.weights,
            "exemplars": in_use.num_bytes.exemplars,
            "held_out_images": in_use.num_bytes.held_out,
            "document": in_use.num_bytes.document,
            "total": in_use.num_bytes.total,
            "ceiling": None if max_mb is None else int(max_mb * 1_000_000),
        },
        "classes": [
            {
                "index": entry.index,
                "name": entry.name,
                "forgotten": entry.is_forgotten,
                "num_exemplars": entry.num_exemplars,
                "num_held_out": entry.num_held_out,
            }
            for entry in in_use.classes
        ],
    }


def _versions(inventory: Inventory) -> list[list[str]]:
    versions, rejected, in_use = inventory.versions, inventory.rejected, inventory.in_use
    count = f"{len(versions)} version{'' if len(versions) == 1 else 's'}"
    numbers = f", rejected: {', '.join(map(str, rejected))}" if rejected else ""
    if inventory.damaged:
        numbers += f", damaged: {', '.join(map(str, inventory.damaged))} ('grace prune' removes it)"
    if in_use is None:
        return [["version", f"none in use; {count}{numbers}"]]
    document = in_use.document
    return [
        ["version", f"{document.number} in use; {count}{numbers}"],
        ["created", _minute(in_use.created)],
        ["updated", f"{_minute(document.created)} by grace {document.grace_version}"],
    ]


def _made_of(inventory: Inventory) -> list[list[str]]:
    settings, in_use = inventory.settings, inventory.in_use
    channels, height, width = inventory.shape
    colours = "grey" if channels == 1 else "colour"
    backbone = printable(settings.backbone.name)
    if in_use is not None:
        count, parameters = in_use.last.num_backbones[1], in_use.last.num_parameters[1]
        if settings.method.traits.shares_trunk:
            backbone = f"last stage of {backbone}"
        backbone = f"{count} × {backbone}, {in_count(parameters)} parameters with the head"
    return [
        ["method", settings.method.name],
        ["backbones", backbone],
        ["images", f"{width}×{height} pixels, {colours}"],
    ]


def _assessed(in_use: InUse) -> list[list[str]]:
    if in_use.assessed is None:
        return [["saturation", "not assessed yet"]]
    outcome, update = in_use.assessed.outcome, in_use.assessed.task
    threshold = "–" if outcome.threshold is None else f"{outcome.threshold:.3f}"
    text = f"{outcome.saturation:.3f}, threshold {threshold}: {outcome.verdict} (update {update})"
    return [["saturation", text]]


def _sizes(inventory: Inventory, in_use: InUse) -> list[list[str]]:
    num_bytes, max_mb = in_use.num_bytes, inventory.settings.memory.max_mb
    share = ""
    if max_mb is not None:
        percent = in_percent(num_bytes.total / (max_mb * 10_000), 1)
        share = f", {percent} % of the ceiling of {max_mb:g} MB"
    rows = [
        ["size", f"{in_bytes(num_bytes.total)}{share}"],
        ["", f"{in_bytes(num_bytes.weights)} weights and method state"],
        ["", f"{in_bytes(num_bytes.exemplars)} exemplars"],
        ["", f"{in_bytes(num_bytes.held_out)} held-out images"],
        ["", f"{in_bytes(num_bytes.document)} document"],
    ]
    if len(inventory.versions) > 1:
        rows.append(["", f"{in_bytes(inventory.num_bytes)} with all versions"])
    return rows


def _classes(in_use: InUse) -> Iterator[str]:
    forgotten = sum(entry.is_forgotten for entry in in_use.classes)
    hidden = f", {forgotten} of them forgotten" if forgotten else ""
    yield counted(len(in_use.classes), "class", "classes") + hidden
    rows = [["  index", "exemplars", "held out", "class"]]
    for entry in in_use.classes:
        counts = [
            "?" if count is None else str(count)
            for count in (entry.num_exemplars, entry.num_held_out)
        ]
        name = printable(entry.name) + (" (forgotten)" if entry.is_forgotten else "")
        rows.append([str(entry.index), *counts, name])
    yield from aligned(rows, right=">>>")


def _changed(inventory: Inventory) -> list[SettingRow]:
    """List the settings that differ from their defaults, without ``scenario`` (unused here)."""
    return [
        row
        for row in describe_settings(inventory.settings)
        if not row.is_default and not row.path.startswith("scenario.")
    ]


def _minute(date: str) -> str:
    """Shorten a date in ISO 8601: "2026-11-21 08:18 UTC"."""
    if not date:
        return "–"
    return date[:16].replace("T", " ") + (" UTC" if date.endswith("+00:00") else date[19:])


def _plain(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
