"""Convert a learner to its document and objects, and back."""

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, final

import torch
from torch import Tensor

import grace
from grace.base.errors import DamagedError, GraceError
from grace.base.machine import memory_bytes
from grace.base.tensors import encoded_size
from grace.base.words import one_line
from grace.data.encoded import BYTES_PER_IMAGE
from grace.learner.document import Document, UpdateRecord
from grace.learner.held_out import HeldOut
from grace.learner.saved_images import MAX_FEATURES, SavedImages, count_images, to_tensors
from grace.learner.setting_changes import SettingChange
from grace.learner.store import Creation, ModelStore, Put
from grace.learner.unknown import Recogniser, problem_of, recogniser_of
from grace.methods.method import Method
from grace.methods.slots import Parts
from grace.methods.state import DeclaredState, MethodState
from grace.settings.experiment import EngineSettings, ExperimentSettings


@final
@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything that a saved version holds."""

    settings: ExperimentSettings
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: Sequence[str]
    forgotten: Collection[int]
    history: Sequence[UpdateRecord]
    method: Method
    held_out: HeldOut
    recogniser: Recogniser
    parent: int | None
    """Number of the version that its last update started from."""
    changed: Sequence[SettingChange] = ()
    """Settings that differ from that version's."""


@final
@dataclass(frozen=True, kw_only=True)
class _Objects:
    """The tensors of each object of a version."""

    parts: Parts
    exemplars: Mapping[int, Mapping[str, Tensor]]
    validation: Mapping[int, Mapping[str, Tensor]]
    calibration: Mapping[str, Tensor] | None


def _objects_of(contents: Contents) -> _Objects:
    method, held_out = contents.method, contents.held_out
    exemplars: dict[int, Mapping[str, Tensor]] = {}
    # A memory that keeps every image is not saved: its images stay where they came from.
    if not method.memory.keep_all:
        kept = method.memory
        exemplars = {i: to_tensors(kept.of_class(i), method) for i in kept.classes}
    return _Objects(
        parts=method.state.collect().parts,
        exemplars=exemplars,
        validation={i: to_tensors(held_out.of_class(i), method) for i in held_out.classes},
        calibration=contents.recogniser.tensors or None,
    )


def to_document(
    contents: Contents,
    put: Put,
    *,
    number: int,
    status: Literal["accepted", "rejected"] = "accepted",
    digest: str | None = None,
) -> Document:
    """Store a learner's objects and return the document of its version.

    Args:
        contents: contents of a learner that has learnt something.
        put: stores tensors and returns their reference.
        number: number of the version.
        status: result of the acceptance gate.
        digest: digest of the images of its last update.
    """
    objects = _objects_of(contents)
    earlier = [update.past for update in contents.history[:-1]]
    return Document(
        number=number,
        parent=contents.parent,
        status=status,
        digest=digest,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        grace_version=grace.__version__,
        settings=portable(contents.settings),
        changed=tuple(contents.changed),
        shape=contents.shape,
        mean=contents.mean,
        std=contents.std,
        class_names=tuple(contents.class_names),
        forgotten=tuple(sorted(contents.forgotten)),
        values=dict(contents.method.state.collect().values),
        parts={name: put(part) for name, part in objects.parts.items()},
        original_counts=dict(contents.method.memory.original_counts),
        exemplars={index: put(images) for index, images in objects.exemplars.items()},
        exemplar_counts={i: len(contents.method.memory.of_class(i)) for i in objects.exemplars},
        validation={index: put(images) for index, images in objects.validation.items()},
        validation_counts={i: contents.held_out.count(i) for i in objects.validation},
        calibration=put(objects.calibration) if objects.calibration else None,
        unknown_score=contents.recogniser.score.name,
        history=(*earlier, *contents.history[-1:]),
    )


def count_object_bytes(contents: Contents) -> int:
    """Return the number of bytes of a version's objects; its document is not counted.

    Nothing is written. Equal objects are counted twice.
    """
    objects = _objects_of(contents)
    calibration = [objects.calibration] if objects.calibration else []
    groups = (objects.parts, objects.exemplars, objects.validation)
    return _encoded([*(tensors for group in groups for tensors in group.values()), *calibration])


def count_part_bytes(contents: Contents) -> int:
    """Return the number of bytes of weights and method state; see ``count_object_bytes``."""
    return _encoded(contents.method.state.collect().parts.values())


def _encoded(files: Iterable[Mapping[str, Tensor]]) -> int:
    """Return the bytes of files of tensors (of any shape)."""
    return sum(
        encoded_size({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()})
        for tensors in files
    )


def portable(settings: ExperimentSettings) -> ExperimentSettings:
    """Return settings without this machine's data folder."""
    data = settings.data.model_copy(update={"root": None})
    return settings.model_copy(update={"data": data})


def read_state(document: Document, home: ModelStore) -> MethodState:
    """Read a method's state from its home."""
    parts = {name: home.read(ref, f"{name}") for name, ref in document.parts.items()}
    return MethodState(document.values, parts)


def refuse_other_features(images: SavedImages, method: Method, home: ModelStore) -> None:
    """Refuse saved features that this method's network cannot have computed.

    Args:
        images: the saved images of a version, with their features.
        method: whose network computes features of its own width.
        home: named in the message.

    Raises:
        DamagedError: if their number differs from the network's.
    """
    width = method.network.feature_dim
    for _, features in images.features:
        if features.shape[1] != width:
            raise DamagedError(
                f"images of '{home.path}' have {features.shape[1]} features, its network has "
                f"{width}: they belong to another learner"
            )


def read_recogniser(document: Document, home: ModelStore, width: int) -> Recogniser:
    """Read how a version recognises unknown images.

    Args:
        document: of a version that has held-out images.
        home: its home.
        width: D, of the network's features.

    Raises:
        DamagedError: if its tensors are not those of the score that it names.
    """
    assert document.calibration is not None
    tensors = home.read(document.calibration, "calibration")
    problem = problem_of(document.unknown_score, tensors, width)
    if problem:
        raise DamagedError(f"the calibration of '{home.path}' is damaged: {problem}")
    return recogniser_of(tensors)


def refuse_too_large(document: Document, home: ModelStore) -> None:
    """Refuse a version that is too large for this machine's memory.

    Raises:
        DamagedError: if it is too large; the message names its size.
    """
    sizes = [ref.bytes for ref in document.objects.values()]
    weights = sum(ref.bytes for ref in document.parts.values())
    image_bytes = math.prod(document.shape)
    # The weights exist twice, as read and in their modules, beside the file being decoded.
    needed = sum(sizes) + weights + max(sizes, default=0)
    # Encoded images are larger in memory.
    for kept, counts in (
        (document.exemplars, document.exemplar_counts),
        (document.validation, document.validation_counts),
    ):
        needed += sum(max(0, image_bytes * n - kept[i].bytes) for i, n in counts.items())
    memory = memory_bytes()
    if memory is not None and needed > 3 * memory // 4:
        raise DamagedError(
            f"version {document.number} of '{home.path}' says that it has {sum(sizes)} bytes, too "
            "many for the memory of this machine: it is damaged, or needs a larger one"
        )
    image_bytes += BYTES_PER_IMAGE
    if not document.settings.method.traits.trains_backbone:
        image_bytes += 2 * MAX_FEATURES
    for index, ref in document.exemplars.items():
        most = document.original_counts.get(index, 0)
        # A header has 500 bytes at most.
        if ref.bytes > 500 + image_bytes * most or document.exemplar_counts.get(index, 0) > most:
            raise DamagedError(
                f"version {document.number} of '{home.path}' is damaged: it keeps more images of "
                f"class {index} than there ever were"
            )


def refuse_unlike(document: Document, home: ModelStore, state: DeclaredState) -> None:
    """Refuse a version whose files hold other tensors than it must have, by their headers alone.

    Args:
        document: the version.
        home: of the learner.
        state: the state of its method, for the shapes of all tensors.

    Raises:
        DamagedError: naming the file.
    """
    parts = {name: home.outline(ref, name) for name, ref in document.parts.items()}
    with naming_source(document, home):
        state.refuse_unlike(parts, len(document.class_names))
    memory, num_exemplars, num_held_out = document.settings.memory, 0, 0
    for index, ref in document.exemplars.items():
        what = f"exemplars of class {index}"
        count = document.exemplar_counts.get(index)
        num_exemplars += count_images(document, home, home.outline(ref, what), count, what)
    if memory.size is not None and memory.per_class is None and num_exemplars > memory.size:
        raise DamagedError(
            f"version {document.number} of '{home.path}' is damaged: it keeps {num_exemplars} "
            f"exemplars, and its memory.size is {memory.size}"
        )
    for index, ref in document.validation.items():
        what, count = f"held-out images of class {index}", document.validation_counts.get(index)
        num_held_out += count_images(document, home, home.outline(ref, what), count, what)
    if document.calibration is not None:
        found = home.outline(document.calibration, "calibration").get("familiarities")
        if found is None or found.numel() > num_held_out:
            raise DamagedError(f"the calibration of '{home.path}' is damaged: it holds no scores")


@contextmanager
def naming_source(saved: Document | Creation, home: ModelStore) -> Iterator[None]:
    """Prefix errors raised while loading with the version and path that they concern.

    Raises:
        DamagedError: in place of a ``DamagedError``.
        GraceError: in place of any other ``GraceError``.
    """
    try:
        yield
    except GraceError as error:
        which = f"version {saved.number} of " if isinstance(saved, Document) else ""
        text = f"{which}'{home.path}' cannot be brought back: {error}"
        if isinstance(error, DamagedError):
            raise DamagedError(text) from error
        raise GraceError(one_line(text)) from error


def carried_out_here(
    settings: ExperimentSettings, engine: EngineSettings | None
) -> ExperimentSettings:
    """Return settings with the given engine, or with the saved one adapted to this machine."""
    if engine is None:
        saved, cores = settings.engine, os.cpu_count() or 1
        no_cuda = saved.device == "cuda" and not torch.cuda.is_available()
        # The CPU has no float16, which a saved precision asks for in training only.
        halved = saved.precision == "float16" and not torch.cuda.is_available()
        precision = "float32" if halved else saved.precision
        engine = saved.model_copy(
            update={
                "device": "auto" if no_cuda else saved.device,
                "precision": precision,
                "threads": min(saved.threads, cores) if saved.threads else None,
                "eval_batch_size": min(saved.eval_batch_size, 512),
            }
        )
    return settings.model_copy(update={"engine": engine})
