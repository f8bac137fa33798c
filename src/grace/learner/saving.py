"""Convert a learner to its document and objects, and back."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
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
from grace.data.images import Images
from grace.learner.document import Creation, Document, ImagesRef
from grace.learner.model_state import HeldOut, ModelState
from grace.learner.store import ModelStore, Put
from grace.learner.unknown import Recogniser, problem_of, recogniser_of
from grace.methods.method import Method
from grace.methods.saved import MAX_FEATURES, image_tensors, read_images
from grace.methods.slots import Parts
from grace.methods.state import MethodState
from grace.settings.experiment import EngineSettings, ExperimentSettings


@final
@dataclass(frozen=True, kw_only=True)
class _Objects:
    """The tensors of each object of a version."""

    parts: Parts
    exemplars: Mapping[int, Mapping[str, Tensor]]
    validation: Mapping[int, Mapping[str, Tensor]]
    calibration: Mapping[str, Tensor] | None


def _objects_of(state: ModelState) -> _Objects:
    method, held_out = state.method, state.held_out
    exemplars: dict[int, Mapping[str, Tensor]] = {}
    # A memory that keeps every image is not saved: its images stay where they came from.
    if not method.memory.keep_all:
        kept = method.memory
        exemplars = {i: image_tensors(kept.of_class(i), method.features) for i in kept.classes}
    return _Objects(
        parts=method.state.collect().parts,
        exemplars=exemplars,
        validation={
            i: image_tensors(held_out.of_class(i), method.features) for i in held_out.classes
        },
        calibration=state.recogniser.tensors or None,
    )


def to_document(
    creation: Creation,
    state: ModelState,
    put: Put,
    *,
    number: int,
    status: Literal["accepted", "rejected"] = "accepted",
    digest: str | None = None,
) -> Document:
    """Store a learner's objects and return the document of its version.

    Args:
        creation: settings and images of the learner.
        state: what it has learnt, which is something.
        put: stores tensors and returns their reference.
        number: number of the version.
        status: result of the acceptance gate.
        digest: digest of the images of its last update.
    """
    objects = _objects_of(state)
    earlier = [update.past for update in state.history[:-1]]
    return Document(
        number=number,
        parent=state.version,
        status=status,
        digest=digest,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        grace_version=grace.__version__,
        settings=creation.settings,
        changed=state.changed,
        shape=creation.shape,
        mean=creation.mean,
        std=creation.std,
        forgotten=tuple(sorted(state.forgotten)),
        values=dict(state.method.state.collect().values),
        parts={name: put(part) for name, part in objects.parts.items()},
        original_counts=dict(state.method.memory.original_counts),
        exemplars={
            i: ImagesRef(num=len(state.method.memory.of_class(i)), **dict(put(images)))
            for i, images in objects.exemplars.items()
        },
        validation={
            i: ImagesRef(num=state.held_out.count(i), **dict(put(images)))
            for i, images in objects.validation.items()
        },
        calibration=put(objects.calibration) if objects.calibration else None,
        unknown_score=state.recogniser.score.name,
        history=(*earlier, *state.history[-1:]),
    )


def count_object_bytes(state: ModelState) -> int:
    """Return the number of bytes of a version's objects; its document is not counted.

    Nothing is written. Equal objects are counted twice.
    """
    objects = _objects_of(state)
    calibration = [objects.calibration] if objects.calibration else []
    groups = (objects.parts, objects.exemplars, objects.validation)
    return _encoded([*(tensors for group in groups for tensors in group.values()), *calibration])


def count_part_bytes(state: ModelState) -> int:
    """Return the number of bytes of weights and method state; see ``count_object_bytes``."""
    return _encoded(state.method.state.collect().parts.values())


def _encoded(files: Iterable[Mapping[str, Tensor]]) -> int:
    """Return the bytes of files of tensors (of any shape)."""
    return sum(
        encoded_size({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()})
        for tensors in files
    )


def restore(
    document: Document, home: ModelStore, method: Method, held_out: HeldOut
) -> Recogniser | None:
    """Give a fresh method and an empty ``held_out`` what a version holds.

    Returns:
        How the version recognises unknown images; ``None``: that is to be computed again.

    Raises:
        DamagedError: if a file is damaged, or holds what this version cannot have saved.
        GraceError: if it is too large for this machine.
    """
    _refuse_too_large(document)
    # By their headers first: a forged object that nobody needs costs no memory.
    outlines = {name: home.outline(ref, name) for name, ref in document.parts.items()}
    method.state.refuse_unlike(outlines, len(document.class_names))
    parts = {name: home.read(ref, name) for name, ref in document.parts.items()}
    method.state.restore(MethodState(document.values, parts), len(document.class_names))
    method.state.refuse_unfit(document.shape)
    features: list[tuple[Images, Tensor]] = []

    def images_of(kept: Mapping[int, ImagesRef], what: str) -> Iterator[tuple[int, Images]]:
        for index, ref in kept.items():
            name = f"{what} of class {index}"
            images, own = read_images(home.read(ref, name), document.shape, name, ref.num)
            if own is not None:
                if method.features is None or own.shape[1] != method.network.feature_dim:
                    raise DamagedError(f"the {name} have features that the network has not")
                features.append((images, own))
            yield index, images

    exemplars = dict(images_of(document.exemplars, "exemplars"))
    method.memory.restore(exemplars, document.original_counts)
    for index, images in images_of(document.validation, "held-out images"):
        held_out.add(index, images)
    if method.features is not None:
        method.features.restore(features)
    if document.calibration is None:
        return None
    found = home.outline(document.calibration, "calibration").get("familiarities")
    if found is None or found.numel() > len(held_out):
        raise DamagedError("the calibration is damaged: it holds no scores of held-out images")
    tensors = home.read(document.calibration, "calibration")
    problem = problem_of(document.unknown_score, tensors, method.network.feature_dim)
    if problem:
        raise DamagedError(f"the calibration is damaged: {problem}")
    return recogniser_of(tensors)


def _refuse_too_large(document: Document) -> None:
    """Refuse a version that is too large for this machine, or keeps more images than it learnt."""
    sizes = [ref.bytes for ref in document.refs]
    weights = sum(ref.bytes for ref in document.parts.values())
    kept = [*document.exemplars.items(), *document.validation.items()]
    image_bytes = math.prod(document.shape)
    # The weights exist twice, as read and in their modules, beside the file being decoded; encoded
    # images are larger in memory.
    needed = sum(sizes) + weights + max(sizes, default=0)
    needed += image_bytes * sum(ref.num for _, ref in kept)
    memory = memory_bytes()
    if memory is not None and needed > 3 * memory // 4:
        raise DamagedError(
            f"it says that it has {sum(sizes)} bytes, too many for the memory of this machine: it "
            "is damaged, or needs a larger one"
        )
    # A header has 500 bytes at most.
    image_bytes += BYTES_PER_IMAGE
    image_bytes += 0 if document.settings.method.traits.trains_backbone else 2 * MAX_FEATURES
    for index, ref in kept:
        if ref.bytes > 500 + image_bytes * ref.num:
            raise DamagedError(f"{ref.num} images of class {index} take {ref.bytes} bytes")
    for index, ref in document.exemplars.items():
        if ref.num > document.original_counts.get(index, 0):
            raise DamagedError(f"it keeps more images of class {index} than there ever were")
    num_exemplars, memory_settings = (
        sum(r.num for r in document.exemplars.values()),
        (document.settings.memory),
    )
    size = memory_settings.size
    if size is not None and memory_settings.per_class is None and num_exemplars > size:
        raise DamagedError(f"it keeps {num_exemplars} exemplars, and memory.size is {size}")


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
