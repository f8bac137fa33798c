"""A learner's model card in Markdown, from its documents. Torch-free, unless weights are hashed.

Names of classes, files and settings may come from strangers: all of them are escaped.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grace.base.errors import GraceError
from grace.base.words import in_bytes, in_count, in_interval, markdown
from grace.learner.accuracies import ClassAccuracy
from grace.learner.document import Document, ObjectRef
from grace.learner.history import Change, unnoted
from grace.learner.inventory import ClassEntry, InUse
from grace.learner.ledger import LedgerEntry, ledger
from grace.learner.statistics import wilson
from grace.learner.store import ModelStore
from grace.settings.describe import describe_settings

if TYPE_CHECKING:
    from torch import Tensor

    from grace.learner.model import Model

FEW = 50
"""Held-out images of a class below which its accuracy is marked as uncertain."""


def card(
    document: Document,
    *,
    name: str,
    kept: Collection[int] = (),
    changes: Sequence[Change] = (),
) -> str:
    """Return a model card: what a learner knows, how well, from which data, and its limits.

    Args:
        document: the version that the card is about.
        name: name of the learner.
        kept: numbers of the versions of its home.
        changes: the history of its home; empty: it has none.
    """
    changes = changes or unnoted([document])
    in_use = InUse.of(document)
    sections = {
        f"Model card: {markdown(name)}": _facts(in_use),
        "Classes": _classes(in_use),
        "Data": _data(document, ledger(changes, kept or [document.number], document.number)),
        "Backbone and weights": _backbone(document),
        "Settings that differ from their defaults": _settings(document),
        "History": _history(changes),
        "Known limits": _limits(in_use),
    }
    lines: list[str] = []
    for number, (title, content) in enumerate(sections.items()):
        lines += [f"{'#' if number == 0 else '##'} {title}", "", *content, ""]
    return "\n".join(lines[:-1]) + "\n"


def card_of(home: ModelStore) -> str:
    """Return the card of the version in use of a home.

    Raises:
        GraceError: if nothing has been learnt.
        DamagedError: if the version in use is damaged.
    """
    survey = home.survey()
    if survey.current is None:
        raise GraceError(
            f"nothing has been learnt yet in '{home.path}'", "teach this learner with 'grace learn'"
        )
    (document,) = (made for made in survey.documents if made.number == survey.current)
    return _card_at_home(document, home)


def _card_at_home(document: Document, home: ModelStore) -> str:
    name = home.path.resolve().name
    return card(document, name=name, kept=home.numbers(), changes=home.history())


def card_of_model(model: "Model", home: ModelStore | None) -> str:
    """Return the card of a model in memory.

    Args:
        model: the model.
        home: where its versions are; ``None``: it has none.

    Raises:
        GraceError: if nothing has been learnt.
    """
    from grace.base.tensors import encode
    from grace.learner import saving

    if not model.state.history:
        raise GraceError("nothing has been learnt yet", "call update first")
    if home is not None and model.state.version is not None:
        document = home.document(model.state.version)
        return _card_at_home(document, home)

    def put(tensors: "Mapping[str, Tensor]") -> ObjectRef:
        data = encode(tensors)
        return ObjectRef(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))

    return card(saving.to_document(model.contents(), put, number=1), name="a learner in memory")


def _facts(in_use: InUse) -> Iterator[str]:
    document, settings = in_use.document, in_use.document.settings
    channels, height, width = document.shape
    measured = _measured(in_use)
    right, num = sum(own.after for own in measured), sum(own.num for own in measured)
    squares = f", made squares by {settings.data.fit}" if height == width else ""
    predictor = in_use.last.predictor
    yield from _table(
        ("", ""),
        [
            ("version", f"{document.number} of {document.created[:10]}"),
            ("grace", document.grace_version),
            ("method", settings.method.name),
            ("classes", str(len(document.live_class_names))),
            ("accuracy", _accuracy(right, num)),
            ("predictor", predictor.words if predictor else "the method's own"),
            ("images", f"{width}×{height}, {'grey' if channels == 1 else 'colour'}{squares}"),
            (
                "normalised by",
                f"mean {_numbers(document.mean)}, deviation {_numbers(document.std)}",
            ),
            ("parameters", in_count(in_use.last.num_parameters[1])),
            ("bytes of this version", in_bytes(in_use.num_bytes.total)),
        ],
    )


def _classes(in_use: InUse) -> Iterator[str]:
    measured = {own.index: own for own in _measured(in_use)}
    counts = in_use.document.original_counts
    rows = []
    for entry in in_use.classes:
        own = measured.get(entry.index)
        rows.append(
            (
                str(entry.index),
                entry.name + (" (forgotten)" if entry.is_forgotten else ""),
                str(counts.get(entry.index, "–")),
                *_kept(entry),
                "–" if own is None else f"{100 * own.after / own.num:.1f} % of {own.num}",
                "–" if own is None else in_interval(own.interval),
            )
        )
    yield from _table(
        ("index", "class", "learnt from", "exemplars", "held out", "accuracy", "95 % interval"),
        rows,
    )
    yield ""
    yield "Accuracies are of the held-out images, which are never trained on; Wilson's intervals."


def _data(document: Document, entries: Sequence[LedgerEntry]) -> Iterator[str]:
    yield "The hash of an update is the SHA-256 of its images, their names and its limits."
    yield ""
    own = {update.past for update in document.history}
    rows = [
        (
            "–" if e.version is None else f"{e.version}{' (removed)' * e.is_removed}",
            e.date[:10] or "–",
            str(e.update.num_images),
            e.digest or "not learnt in this home",
            "yes" if e.update in own else "no",
        )
        for e in entries
        if not e.is_set
    ]
    heads = ("version", "date", "images", "SHA-256 of the update", "part of this model")
    yield from _table(heads, rows)


def _backbone(document: Document) -> Iterator[str]:
    backbone = document.settings.backbone
    yield f"- backbone: {markdown(backbone.name)}, {document.history[-1].num_backbones[1]} of them"
    yield f"- first weights: {markdown(backbone.weights)}{_digest(document)}"
    trained = backbone.train or "what the method trains"
    yield f"- trained: {markdown(trained)}"
    for name, ref in document.parts.items():
        yield f"- saved part {markdown(name)}: {in_bytes(ref.bytes)}, SHA-256 {ref.sha256}"
    if backbone.weights != "none":
        yield ""
        yield (
            "Pre-trained weights flatter classes that the pre-training has seen: weights from "
            "ImageNet flatter ImageNet's own classes, and any data set made of its images."
        )


def _digest(document: Document) -> str:
    backbone = document.settings.backbone
    if not backbone.weights.endswith(".safetensors"):
        return ""
    if not _is_here(backbone.weights):
        return " (the file is not on this machine)"
    # Imported here because it imports torch.
    from grace.nn.weights import digest_of_weights

    try:
        found = digest_of_weights(backbone)
        return f" (the file of this name on this machine: SHA-256 of its tensors {found})"
    except GraceError:  # Another file has this name here; the card can do without.
        return " (the file of this name on this machine does not fit the backbone)"


def _is_here(file: str) -> bool:
    try:
        return Path(file).expanduser().is_file()
    except RuntimeError:  # Nobody of the name after "~" has a home here.
        return False


def _settings(document: Document) -> Iterator[str]:
    rows = [
        (row.path, row.value if isinstance(row.value, str) else json.dumps(row.value))
        for row in describe_settings(document.settings)
        if not row.is_default and not row.path.startswith(("scenario.", "description"))
    ]
    yield from _table(("setting", "value"), rows) if rows else ["There are none."]


def _history(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        date = markdown(change.date[:16].replace("T", " ")) or "–"
        yield f"- {date}: {markdown(change.words)}"


def _limits(in_use: InUse) -> Iterator[str]:
    document, settings = in_use.document, in_use.document.settings
    measured = _measured(in_use)
    if measured:
        yield (
            "- Accuracies hold for images like those that were learnt: held-out images come from "
            "the same folders."
        )
    else:
        yield "- No images are held out: nothing is known about its accuracy."
    few = [document.class_names[own.index] for own in measured if own.num < FEW]
    if few:
        yield (
            f"- Fewer than {FEW} images are held out of {len(few)} of {len(measured)} classes: "
            "their accuracies are rough, as the intervals show."
        )
    if document.forgotten:
        yield (
            "- What the weights know of forgotten classes is hidden, not gone; their images are "
            "removed."
        )
    if settings.memory.format == "webp" and settings.memory.quality < 100:
        quality = settings.memory.quality
        yield f"- Exemplars are stored as WebP of quality {quality}, with a small loss."
    if settings.data.fit == "crop" and document.shape[1] == document.shape[2]:
        yield "- Of images that are no squares only the centre is seen."
    yield (
        "- An image of anything else gets one of the known classes, unless unknown images are "
        "looked for (`grace predict --unknown`)."
    )
    yield "- Classes that were learnt long ago are remembered by few images and may be forgotten."


def _kept(entry: ClassEntry) -> tuple[str, str]:
    exemplars, held = entry.num_exemplars, entry.num_held_out
    return "–" if exemplars is None else str(exemplars), "–" if held is None else str(held)


def _measured(in_use: InUse) -> list[ClassAccuracy]:
    """Return the results of the last update, without classes that were forgotten since."""
    hidden = set(in_use.document.forgotten)
    return [own for own in in_use.last.accuracy.classes if own.index not in hidden]


def _accuracy(right: int, num: int) -> str:
    if not num:
        return "not measured"
    return f"{100 * right / num:.1f} % of {num} held-out images ({in_interval(wilson(right, num))})"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; every cell is escaped."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(markdown, row))} |"
