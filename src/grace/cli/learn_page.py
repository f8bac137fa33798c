"""The output of ``grace learn``: a page, or the same facts as JSON. Imports no torch."""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from grace.base.words import counted, in_bytes, in_count, in_percent, in_seconds
from grace.cli.class_lines import (
    TEST,
    change,
    class_facts,
    class_table,
    gate_facts,
    gate_text,
    interval,
    losses,
    predictor_text,
)
from grace.cli.columns import aligned
from grace.cli.why import why
from grace.learner.document import UpdateRecord
from grace.learner.gate import lost_classes
from grace.learner.request import LearnResult
from grace.settings.pretrained import recommended


def page(result: LearnResult, width: int | None) -> list[str]:
    """Return the lines to print: a page about the update, or one line if nothing was learnt.

    Args:
        result: result of the call.
        width: columns of the terminal; ``None``: lines are not wrapped.
    """
    update = result.document.history[-1]
    lines = [_headline(result)]
    if not result.is_new and not result.is_rejected:
        return lines + [f"{label:<11}{text}" for label, text in _removed(result)]
    lines.append("")
    for label, text in _facts(result, update):
        lines += _folded(f"{label:<11}", text, width)
    lines += ["", *_table(result, update)]
    if update.accuracy.classes:
        lines += ["", *class_table(update.accuracy, result.document.class_names)]
    lines += ["", *_next_steps(result)]
    return lines


def as_dict(result: LearnResult) -> dict[str, Any]:
    """Return the same facts as a dict; shares lie in [0, 1], drops are percentage points."""
    document = result.document
    update = document.history[-1]
    before = _before(result)
    return {
        "model": str(result.model),
        "version": document.number,
        "status": document.status,
        "learnt_now": result.is_new,
        "in_use": result.in_use,
        "method": document.settings.method.name,
        "new_classes": list(update.new_class_names),
        "revived_classes": list(update.revived_class_names),
        "refreshed_classes": _refreshed(result, update),
        "num_classes": len(document.live_class_names),
        "num_images": update.num_images,
        "num_held_out": _num_held_out(update),
        "num_exemplars": update.num_exemplars,
        "verdict": update.outcome.verdict,
        "why": why(update, document.settings),
        "saturation": update.outcome.saturation,
        "threshold": update.outcome.threshold,
        "merge_weight": update.outcome.merge_weight,
        "backbones": {"before": update.num_backbones[0], "after": update.num_backbones[1]},
        "parameters": {"before": update.num_parameters[0], "after": update.num_parameters[1]},
        "bytes": {"before": before.num_bytes if before else 0, "after": update.num_bytes},
        "max_mb": document.settings.memory.max_mb,
        "accuracy": update.accuracy.model_dump(mode="json", exclude={"classes"}),
        "classes": class_facts(update.accuracy, document.class_names),
        "lost_classes": [document.class_names[own.index] for own in lost_classes(update.accuracy)],
        "drop": update.accuracy.drop,
        "max_drop": update.max_drop,
        "max_class_drop": update.max_class_drop,
        "min_new": update.min_new,
        "gate": gate_facts(update.rulings, document.class_names),
        "predictor": _predictor(update),
        "compression_cost": update.accuracy.compression_cost,
        "seconds": update.all_seconds,
        "removed_versions": list(result.pruned),
        "changed_settings": [change.model_dump() for change in document.changed],
        "chosen": list(result.chosen),
    }


def _predictor(update: UpdateRecord) -> dict[str, Any] | None:
    predictor = update.predictor
    if predictor is None:
        return None
    before, after = predictor.calibration_error or (None, None)
    return {
        "name": predictor.words,
        "temperature": predictor.temperature,
        "calibration_error": {"before": before, "after": after},
    }


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
        what, num_lost = _what(result, update), len(lost_classes(update.accuracy))
        lost = f"; {_counted(num_lost, 'class')} lost accuracy" if num_lost else ""
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


def _what(result: LearnResult, update: UpdateRecord) -> str:
    new, revived = len(update.new_class_names), len(update.revived_class_names)
    parts = [_counted(new, "new class")] if new else []
    parts += [_counted(revived, "forgotten class") + " again"] if revived else []
    if not parts:
        return f"fresh images of {_counted(len(result.class_names), 'known class')}"
    return " and ".join(parts)


def _facts(result: LearnResult, update: UpdateRecord) -> Iterator[tuple[str, str]]:
    settings, accuracy = result.document.settings, update.accuracy
    for line in result.chosen:
        label, _, text = line.partition(" ")
        yield label, text.strip()
    groups = {
        "new": update.new_class_names,
        "revived": update.revived_class_names,
        "refreshed": _refreshed(result, update),
    }
    for label, names in groups.items():
        if names:
            yield label, _listed(names)
    held = f"{_num_held_out(update)} of all classes are held out to judge updates"
    yield (
        "images",
        f"{update.num_images} learnt from; {held if _num_held_out(update) else 'none held out'}",
    )
    lost = losses(accuracy, result.document.class_names)
    if lost:
        yield "LOST", f"{lost} (on held-out images, {TEST})"
    yield "backbone", _backbone(result, update)
    yield "verdict", why(update, settings)
    if accuracy.compression_cost is not None:
        yield (
            "compress",
            f"{_cost(accuracy.compression_cost)} of accuracy on all classes: "
            f"{_share(accuracy.teacher)} before it, {_share(accuracy.student)} after",
        )
    if result.document.changed:
        yield "settings", "; ".join(map(str, result.document.changed))
    yield from _removed(result)
    if update.predictor is not None and _num_held_out(update):
        yield "predictor", predictor_text(update.predictor)
    for ruling in update.rulings:
        yield "gate", gate_text(ruling, result.document.class_names, is_first=update.task == 1)


def _removed(result: LearnResult) -> Iterator[tuple[str, str]]:
    if result.pruned:
        versions = ", ".join(map(str, result.pruned))
        yield "removed", f"versions {versions}, for the directory's ceiling (--max-disk-mb)"


def _backbone(result: LearnResult, update: UpdateRecord) -> str:
    """Say what of the backbone learns, and what would suit so many images."""
    settings = result.document.settings
    weights = sum(ref.bytes for name, ref in result.document.parts.items() if "backbone" in name)
    num_classes = len(result.class_names)
    best, why_best = recommended(update.num_images, num_classes, weights, settings.memory.max_mb)
    traits, train = settings.method.traits, settings.backbone.train
    now = train or ("all" if traits.trains_backbone else "frozen")
    if settings.backbone.weights == "none":
        return (
            f"learns from scratch; {why_best}, so that pre-trained weights (--weights) are likely "
            f"better, with --train {best}"
        )
    told = {"all": "all of it learns", "last-stages": "its last stages learn", "frozen": "frozen"}
    advice = "as recommended" if now == best else f"--train {best} may be better"
    return f"pre-trained, {told[now]}; {why_best}: {advice}"


def _table(result: LearnResult, update: UpdateRecord) -> list[str]:
    """Return a table of accuracy and size before and after; a first update has no "before"."""
    accuracy, before = update.accuracy, _before(result)
    rows = [("", "before", "after", "")]
    for label, first, second, count in (
        ("accuracy, old", accuracy.old_before, accuracy.old_after, accuracy.num_old),
        ("accuracy, new", None, accuracy.new_after, accuracy.num_new),
    ):
        if count and second is not None:
            ends = f"95 % interval {interval(second, count)}, {counted(count, 'held-out image')}"
            rows.append((label, _share(first), _share(second), ends))
    for label, sizes, write in (
        ("backbones", update.num_backbones, str),
        ("parameters", update.num_parameters, in_count),
        ("size", (before.num_bytes if before else 0, update.num_bytes), in_bytes),
    ):
        texts = [write(size) if size else "–" for size in sizes]
        rows.append((label, texts[0], texts[1], _budget(result, update) * (label == "size")))
    rows.append(
        ("exemplars", str(before.num_exemplars) if before else "–", str(update.num_exemplars), "")
    )
    return aligned(rows, right="<>>")


def _budget(result: LearnResult, update: UpdateRecord) -> str:
    max_mb = result.document.settings.memory.max_mb
    if max_mb is None:
        return ""
    return f"{100 * update.num_bytes / (max_mb * 1e6):.0f} % of the {max_mb:g} MB allowed"


def _next_steps(result: LearnResult) -> Sequence[str]:
    model, document = shlex.quote(str(result.model)), result.document
    if document.number in result.pruned:
        return ["to keep it, give a larger --max-disk-mb"]
    if result.is_rejected:
        return [f"use it anyway   grace rollback {model} {document.number}"]
    lines = [f"ask it    grace predict {model} IMAGES"]
    if document.parent is not None and document.parent not in result.pruned:
        lines.append(f"go back   grace rollback {model} {document.parent}")
    return lines


def _before(result: LearnResult) -> UpdateRecord | None:
    history = result.document.history
    return history[-2] if len(history) > 1 else None


def _refreshed(result: LearnResult, update: UpdateRecord) -> list[str]:
    fresh = {*update.new_class_names, *update.revived_class_names}
    return [name for name in result.class_names if name not in fresh]


def _num_held_out(update: UpdateRecord) -> int:
    return update.accuracy.num_old + update.accuracy.num_new


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 'es'}"


def _listed(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _share(value: float | None) -> str:
    return "–" if value is None else f"{in_percent(100 * value, 1)} %"


def _cost(points: float) -> str:
    """Return a cost in words: "cost 1.2 points", "gained 0.3 points"."""
    return f"cost {points:.1f} points" if points >= 0 else change(points)


def _folded(label: str, text: str, width: int | None) -> list[str]:
    """Wrap a text to the width; the lines start after the label."""
    if width is None:
        return [label + text]
    space = max(20, width - len(label))
    first, *rest = textwrap.wrap(text, space, break_long_words=False, break_on_hyphens=False)
    return [label + first, *(" " * len(label) + line for line in rest)]
