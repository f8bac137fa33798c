"""A learner's model card in Markdown, from its documents. Torch-free.

Names of classes, files and settings may come from strangers: the template escapes every value.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from grace.base.errors import GraceError
from grace.base.objects import Ref
from grace.base.words import in_bytes, in_count, in_interval, markdown
from grace.learner.document import Document
from grace.learner.gate import ClassAccuracy, wilson
from grace.learner.history import Change, ledger, unnoted
from grace.learner.inventory import classes
from grace.learner.store import ModelStore
from grace.settings.load import describe_settings

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
    # It takes a tenth of a second to import.
    from jinja2 import Environment, StrictUndefined

    changes = changes or unnoted([document])
    last, counts = document.history[-1], document.original_counts
    measured = {
        own.index: own for own in last.accuracy.classes if own.index not in document.forgotten
    }
    template = files("grace.learner").joinpath("templates", "card.md.j2").read_text("utf-8")
    environment = Environment(
        autoescape=False,  # noqa: S701 - it is Markdown, which ``finalize`` escapes
        finalize=lambda value: markdown(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(template).render(
        name=name,
        document=document,
        last=last,
        facts=_facts(document, list(measured.values())),
        classes=[
            {**own, "learnt": counts.get(own["index"]), **_measured(measured.get(own["index"]))}
            for own in classes(document)
        ],
        updates=[
            row
            for row in ledger(changes, kept or [document.number], document.number)
            if row.change.kind == "learn"
        ],
        own={update.past for update in document.history},
        settings={
            row.path: row.value if isinstance(row.value, str) else json.dumps(row.value)
            for row in describe_settings(document.settings)
            if not row.is_default and not row.path.startswith(("scenario.", "description"))
        },
        changes=changes,
        num_few=sum(own.num < FEW for own in measured.values()) if measured else None,
        in_bytes=in_bytes,
    )


def card_of(home: ModelStore) -> str:
    """Return the card of the version in use of a home.

    Raises:
        GraceError: if nothing has been learnt.
        DamagedError: if the version in use is damaged.
    """
    current = home.current()
    if current is None:
        raise GraceError(
            f"nothing has been learnt yet in '{home.path}'", "teach this learner with 'grace learn'"
        )
    return _card_at_home(home, current)


def _card_at_home(home: ModelStore, number: int) -> str:
    name, kept = home.path.resolve().name, home.numbers()
    return card(home.document(number), name=name, kept=kept, changes=home.history())


def card_of_model(model: "Model", home: ModelStore | None) -> str:
    """Return the card of a model in memory.

    Args:
        model: the model.
        home: where its versions are; ``None``: it has none.

    Raises:
        GraceError: if nothing has been learnt.
    """
    from grace.base.tensors import encode
    from grace.learner.model_state import to_document

    if not model.state.history:
        raise GraceError("nothing has been learnt yet", "call update first")
    if home is not None and model.state.version is not None:
        return _card_at_home(home, model.state.version)

    def put(tensors: "Mapping[str, Tensor]") -> Ref:
        data = encode(tensors)
        return Ref(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))

    return card(to_document(model.creation, model.state, put, number=1), name="a learner in memory")


def _facts(document: Document, measured: Sequence[ClassAccuracy]) -> Mapping[str, Any]:
    last, data = document.history[-1], document.settings.data
    channels, height, width = document.shape
    right, num = sum(own.after for own in measured), sum(own.num for own in measured)
    squares = f", made squares by {data.fit}" if height == width else ""
    mean, std = (", ".join(f"{own:.3f}" for own in part) for part in (document.mean, document.std))
    return {
        "version": f"{document.number} of {document.created[:10]}",
        "grace": document.grace_version,
        "method": document.settings.method.name,
        "classes": len(document.live_class_names),
        "accuracy on held-out images": f"{100 * right / num:.1f} % of {num} "
        f"({in_interval(wilson(right, num))})"
        if num
        else "not measured",
        "images": f"{width}×{height}, {'grey' if channels == 1 else 'colour'}{squares}",
        "normalised by": f"mean {mean}, deviation {std}",
        "parameters": in_count(last.num_parameters[1]),
        "bytes of this version": in_bytes(document.num_bytes),
    }


def _measured(own: ClassAccuracy | None) -> Mapping[str, str]:
    if own is None:
        return {"accuracy": "–", "interval": "–"}
    share = f"{100 * own.after / own.num:.1f} % of {own.num}"
    return {"accuracy": share, "interval": in_interval(own.interval)}
