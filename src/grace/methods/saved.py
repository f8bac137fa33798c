"""A method with its exemplars as one file, and back: what a run keeps between its tasks.

Shapes: N images, C channels, H×W pixels, D features.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, final

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from grace.base import tensors
from grace.base.errors import DamagedError, GraceError
from grace.base.machine import refuse_too_large
from grace.base.strict_json import checked
from grace.data.images import Images, TensorImages
from grace.data.memory import decode_stored
from grace.methods.feature_cache import FeatureCache
from grace.methods.method import Method
from grace.methods.outcome import Outcome
from grace.methods.state import MethodState
from grace.settings.experiment import ExperimentSettings

FILE = "state.safetensors"
"""Name of the file: in ``checkpoint`` while a run goes on, beside its record if it is kept."""
MAX_FEATURES = 16_384
"""The most numbers of one image's features that are saved."""
_MEMORY = "memory."
"""Prefix of the exemplars' groups; the class index follows."""
_Side = Annotated[int, Field(ge=1, le=1024)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@final
class LearntTask(_Strict):
    """One task that the method has learnt."""

    new_class_names: tuple[str, ...]
    outcome: Outcome


@final
class SavedMethod(_Strict):
    """Everything about a saved method except its tensors."""

    kind: Literal["grace method"] = "grace method"
    settings: ExperimentSettings
    shape: tuple[Annotated[int, Field(ge=1, le=3)], _Side, _Side]
    """(C, H, W) of every image."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    tasks: tuple[LearntTask, ...]
    values: dict[str, Any]
    """The method's values that are not tensors."""
    original_counts: dict[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]]

    @property
    def class_names(self) -> list[str]:
        """Names by class index."""
        return [name for task in self.tasks for name in task.new_class_names]


def encode(
    method: Method,
    settings: ExperimentSettings,
    shape: tuple[int, int, int],
    constants: tuple[Sequence[float], Sequence[float]],
    tasks: Sequence[LearntTask],
) -> bytes:
    """Return a method's state, exemplars and facts as the bytes of a file.

    A memory that keeps every image is not saved: its images stay where they came from.

    Args:
        method: the method.
        settings: of the run.
        shape: (C, H, W) of its images.
        constants: mean and standard deviation per channel.
        tasks: learnt so far.
    """
    state, memory = method.state.collect(), method.memory
    kept = {f"{part}/{name}": t for part, own in state.parts.items() for name, t in own.items()}
    for index in [] if memory.keep_all else memory.classes:
        own = image_tensors(memory.of_class(index), method.features)
        kept |= {f"{_MEMORY}{index}/{name}": tensor for name, tensor in own.items()}
    mean, std = constants
    facts = SavedMethod(
        settings=settings,
        shape=shape,
        mean=tuple(mean),
        std=tuple(std),
        tasks=tuple(tasks),
        values=dict(state.values),
        original_counts=dict(memory.original_counts),
    )
    return tensors.encode_with(facts.model_dump(mode="json"), kept)


def read(path: Path) -> tuple[SavedMethod, dict[str, Tensor]]:
    """Read the facts and tensors of a saved method.

    The header comes first: a file that says nothing of a method, or is too large for what it says
    and for this machine, is not read.

    Raises:
        DamagedError: if it is another file, or damaged.
    """
    what = f"'{path}'"

    def check(said: object, outline: Mapping[str, Tensor]) -> SavedMethod:
        facts = checked(SavedMethod, said, what)
        most = sum(facts.original_counts.values()) * (math.prod(facts.shape) + 2 * MAX_FEATURES)
        if sum(t.nbytes for name, t in outline.items() if name.startswith(_MEMORY)) > most:
            raise DamagedError(f"{what} is damaged: it keeps more images than there ever were")
        refuse_too_large(3 * sum(t.nbytes for t in outline.values()), what)
        return facts

    return tensors.read_with(path, what, check)


def restore(method: Method, facts: SavedMethod, kept: Mapping[str, Tensor], what: str) -> None:
    """Give a fresh method the state of a saved one.

    Args:
        method: built with the settings and shape of the saved one.
        facts: as ``read`` returns them.
        kept: its tensors, of any shape.
        what: name of the file in messages.

    Raises:
        DamagedError: if the method cannot have saved such a state.
    """
    groups: dict[str, dict[str, Tensor]] = {}
    for path, tensor in kept.items():
        group, _, name = path.partition("/")
        groups.setdefault(group, {})[name] = tensor
    known = {f"{_MEMORY}{index}": index for index in range(len(facts.class_names))}
    exemplars: dict[int, Images] = {}
    features: list[tuple[Images, Tensor]] = []
    for group in known.keys() & groups.keys():
        images, own = read_images(groups.pop(group), facts.shape, what)
        exemplars[known[group]] = images
        features += [] if own is None else [(images, own)]
    method.state.restore(MethodState(facts.values, groups), len(facts.class_names))
    method.memory.restore(dict(sorted(exemplars.items())), facts.original_counts)
    if method.features is not None:
        method.features.restore(features)


def image_tensors(images: Images, cache: FeatureCache | None) -> dict[str, Tensor]:
    """Return the tensors of a group of saved images.

    Raw pixels are ``images`` (N, C, H, W); encoded images are ``encoded``, their bytes one after
    another, with ``lengths`` (N,). ``features`` (N, D) follow if all of them are known.

    Args:
        images: N images.
        cache: knows their features; ``None``: the backbone changes.
    """
    assert isinstance(images, TensorImages)
    if images.files is not None:
        data = bytearray(b"".join(images.files))
        kept = {
            "encoded": torch.frombuffer(data, dtype=torch.uint8),
            "lengths": torch.tensor([len(file) for file in images.files], dtype=torch.int32),
        }
    else:
        kept = {"images": images.pixels}
    known = None if cache is None else cache.halves(images)
    return kept | ({} if known is None else {"features": known})


def read_images(
    kept: Mapping[str, Tensor], shape: tuple[int, int, int], what: str, number: int | None = None
) -> tuple[Images, Tensor | None]:
    """Return the images (N, C, H, W) that tensors hold, and their features (N, D), if any.

    Args:
        kept: tensors of a file.
        shape: (C, H, W) of every image.
        what: name of the images in messages.
        number: N; ``None``: any that fits into half of this machine's memory.

    Raises:
        DamagedError: if they hold no such images.
    """
    try:
        first = kept.get("lengths", kept.get("images"))
        if first is None or not first.ndim:
            raise GraceError("they are no images")
        found = len(first)
        if number not in (None, found):
            raise GraceError(f"there are {found}, not {number}")
        refuse_too_large(2 * found * math.prod(shape), "their pixels")
        match kept:
            case {"images": pixels, **rest}:
                if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != shape:
                    raise GraceError("they are no images of the learner's shape")
                images = TensorImages(pixels)
            case {"encoded": data, "lengths": lengths, **rest}:
                images = decode_stored(_files(data, lengths, shape), shape)
            case _:
                raise GraceError("they are no images")
        features = rest.pop("features", None)
        if rest or not len(images):
            raise GraceError("they are no images")
        if features is not None and (
            features.dtype != torch.float16
            or features.ndim != 2
            or len(features) != len(images)
            or features.shape[1] > MAX_FEATURES
            or not bool(features.isfinite().all())
        ):
            raise GraceError("their features are none")
    except GraceError as error:
        raise DamagedError(f"{what} are damaged: {error.what}") from error
    return images, features


def _files(data: Tensor, lengths: Tensor, shape: tuple[int, int, int]) -> list[bytes]:
    """Cut the joined bytes of encoded images (C, H, W) into N files."""
    if data.dtype != torch.uint8 or lengths.dtype != torch.int32 or lengths.ndim != 1:
        raise GraceError("they are no images")
    if not len(lengths) or data.ndim != 1 or len(data) > len(lengths) * math.prod(shape):
        raise GraceError("they are no images")
    sizes: list[int] = lengths.tolist()
    if min(sizes) < 1 or sum(sizes) != len(data):
        raise GraceError("their lengths are not those of their bytes")
    joined = data.numpy().tobytes()
    ends = lengths.long().cumsum(0).tolist()
    return [joined[end - size : end] for end, size in zip(ends, sizes, strict=True)]
