"""What ``grace info`` shows: the contents of a home, from its documents alone, or a model card.

Torch-free.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from grace.base.errors import DamagedError, GraceError
from grace.base.lock import holder
from grace.base.words import in_bytes, in_count, in_interval, markdown
from grace.learner.document import Document
from grace.learner.gate import wilson
from grace.learner.history import Change
from grace.learner.store import ModelStore, bytes_of
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import describe_settings


def facts(home: ModelStore) -> dict[str, Any]:
    """Return what a home holds, by names for programs.

    Raises:
        DamagedError: if the document of the version in use is damaged.
    """
    survey, unfinished = home.survey(), home.log.unfinished()
    changes, problem = list[Change](), None
    try:
        changes = [*home.history()]
    except DamagedError as error:  # It is a trail: the learner answers without it.
        problem = str(error)
    source = survey.in_use or home.creation
    # The lock is only tried beside an update: asking never gets in the way of a start.
    running = holder(home.path / "lock") if home.pending() else None
    return {
        "path": home.path,
        "versions": [made.number for made in survey.documents],
        "rejected_versions": [m.number for m in survey.documents if m.status == "rejected"],
        "damaged_versions": sorted(survey.damaged),
        "interrupted_update": home.pending() is not None and running is None,
        "running_update": running,
        "interrupted_change": unfinished.kind if unfinished else None,
        "changes": changes,
        "history_problem": problem,
        "num_bytes_of_all_versions": bytes_of(survey.documents),
        "method": source.settings.method.name,
        "backbone": source.settings.backbone.name,
        "shape": source.shape,
        "mean": source.mean,
        "std": source.std,
        "settings": _own_settings(source.settings),
        "in_use": survey.in_use and _version(survey.in_use),
    }


def _own_settings(settings: ExperimentSettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults; a learner outgrows its description."""
    return {
        row.path: row.value
        for row in describe_settings(settings)
        if not row.is_default and not row.path.startswith(("scenario.", "description"))
    }


def _version(document: Document) -> dict[str, Any]:
    last, max_mb = document.history[-1], document.settings.memory.max_mb
    outcomes = [update.outcome for update in document.history]
    assessed = next((o for o in reversed(outcomes) if o.saturation is not None), None)
    return {
        "version": document.number,
        "grace_version": document.grace_version,
        "created": document.history[0].date,
        "updated": document.created,
        "num_updates": len(document.history),
        "num_backbones": last.num_backbones[1],
        "num_parameters": last.num_parameters[1],
        "saturation": assessed and assessed.saturation,
        "threshold": assessed and assessed.threshold,
        "temperature": last.temperature,
        "calibration_error": last.calibration_error
        and dict(zip(("before", "after"), last.calibration_error, strict=True)),
        "num_bytes": {
            **document.bytes_by_kind,
            "total": document.num_bytes,
            "ceiling": None if max_mb is None else int(max_mb * 1_000_000),
        },
        "classes": classes(document),
    }


def classes(document: Document) -> list[dict[str, Any]]:
    """Return each class of a version with the images that it keeps."""
    exemplars, held_out = document.exemplars, document.validation
    return [
        {
            "index": index,
            "name": name,
            "forgotten": index in document.forgotten,
            "num_exemplars": exemplars[index].num if index in exemplars else 0,
            "num_held_out": held_out[index].num if index in held_out else 0,
        }
        for index, name in enumerate(document.class_names)
    ]


FEW = 50
"""Held-out images of a class below which a card calls its accuracy rough."""


def card_of(home: ModelStore, number: int | None = None) -> str:
    """Return the model card of a version, in Markdown.

    Args:
        home: the learner's home.
        number: of the version; ``None``: the one in use.

    Raises:
        GraceError: if nothing has been learnt.
        DamagedError: if the version is damaged.
    """
    number = home.current() if number is None else number
    if number is None:
        raise GraceError(
            f"nothing has been learnt yet in '{home.path}'", "teach this learner with 'grace learn'"
        )
    name = home.path.resolve().name
    return card(home.document(number), home.history(), home.numbers(), name)


def card(document: Document, changes: Sequence[Change], kept: Collection[int], name: str) -> str:
    """Return a model card: what a learner knows, how well, from which data, and its limits.

    Args:
        document: the version that the card is about.
        changes: the history of its home.
        kept: numbers of the versions of its home.
        name: name of the learner.
    """
    settings = [
        (path, value if isinstance(value, str) else json.dumps(value))
        for path, value in _own_settings(document.settings).items()
    ]
    past = {update.past for update in document.history}
    updates = [
        (
            f"{own.version or '–'}{' (removed)' if own.version not in (None, *kept) else ''}",
            own.date[:10] or "–",
            own.update.num_images,
            own.digest or "not learnt in this home",
            "yes" if own.update in past else "no",
        )
        for own in changes
        if own.update and own.kind == "learn"
    ]
    heads = ("index", "class", "learnt from", "exemplars", "held out", "accuracy", "95 % interval")
    lines = [
        f"# Model card: {markdown(name)}",
        *_table(("", ""), _card_facts(document)),
        "## Classes",
        *_table(heads, _card_classes(document)),
        "## Data",
        *_table(("version", "date", "images", "SHA-256 of the update", "part of this"), updates),
        "## Settings that differ from their defaults",
        *_table(("setting", "value"), settings),
        "## History",
        *(
            f"- {markdown(own.date[:16].replace('T', ' '))}: {markdown(own.words)}"
            for own in changes
        ),
        "## Known limits",
        *(f"- {limit}" for limit in _limits(document)),
    ]
    return "".join(f"\n{line}\n\n" if line.startswith("#") else f"{line}\n" for line in lines)[1:]


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table; names in it may come from strangers and are escaped."""
    for cells in (heads, ["---"] * len(heads), *rows):
        shown = cells if cells[0] == "---" else [markdown(str(cell)) for cell in cells]
        yield f"| {' | '.join(map(str, shown))} |"


def _card_facts(document: Document) -> Iterator[tuple[str, object]]:
    last, settings = document.history[-1], document.settings
    channels, height, width = document.shape
    measured = [own for own in last.accuracy.classes if own.index not in document.forgotten]
    right, num = sum(own.after for own in measured), sum(own.num for own in measured)
    yield "version", f"{document.number} of {document.created[:10]}"
    yield "grace", document.grace_version
    yield "method", settings.method.name
    yield "classes", len(document.live_class_names)
    share = f"{100 * right / num:.1f} % of {num} ({in_interval(wilson(right, num))})" if num else ""
    yield "accuracy on held-out images", share or "not measured"
    squares = f", made squares by {settings.data.fit}" if height == width else ""
    yield "images", f"{width}×{height}, {'grey' if channels == 1 else 'colour'}{squares}"
    yield "backbone", f"{settings.backbone.name}, {last.num_backbones[1]} of them"
    yield "first weights", settings.backbone.weights
    yield "parameters", in_count(last.num_parameters[1])
    yield "bytes of this version", in_bytes(document.num_bytes)


def _card_classes(document: Document) -> Iterator[Sequence[object]]:
    measured = {own.index: own for own in document.history[-1].accuracy.classes}
    for entry in classes(document):
        index, gone = entry["index"], entry["forgotten"]
        own = None if gone else measured.get(index)
        yield (
            index,
            f"{entry['name']}{' (forgotten)' if gone else ''}",
            document.original_counts.get(index, "–"),
            entry["num_exemplars"],
            entry["num_held_out"],
            f"{100 * own.after / own.num:.1f} % of {own.num}" if own else "–",
            in_interval(own.interval) if own else "–",
        )


def _limits(document: Document) -> Iterator[str]:
    measured = document.history[-1].accuracy.classes
    num_few = sum(own.num < FEW and own.index not in document.forgotten for own in measured)
    if measured:
        yield "Accuracies hold for images like the held-out ones, which come from the same folders."
    else:
        yield "No images are held out: nothing is known about its accuracy."
    if num_few:
        yield f"Fewer than {FEW} images are held out of {num_few} classes: see the intervals."
    if document.settings.backbone.weights != "none":
        yield "Pre-trained weights flatter classes that the pre-training has seen."
    if document.forgotten:
        yield "What the weights know of forgotten classes is hidden, not gone."
    yield "An image of anything else gets one of the known classes, without `predict --unknown`."
