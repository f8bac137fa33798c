"""A learner over a whole stream, and what was seen of it in each task: the contract suite asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from grace.data.images import Images, LabelledImages
from grace.engine.phase import GradientSweep, Part, Phase, Rounds, Sweep, Work
from grace.learner.learner import Learner, UpdateRecord
from grace.settings.method import BaseMethodSettings
from support.counted_images import ReadCounts
from support.tiny_streams import class_names, labelled, learner, same, state, watch

State = Mapping[str, Tensor]

MEMORY_SIZE = 13
# Uneven tasks of new classes, one of them of a single class; then images of the known class 0
# beside a new one; then of known classes only.
STREAM: tuple[Mapping[int, int], ...] = (
    {0: 10, 1: 10, 2: 10},
    {3: 10, 4: 10},
    {5: 9},
    {0: 6, 6: 9},
    {1: 7, 3: 5},
)
NUM_SEEN = (3, 5, 6, 7, 7)


@final
@dataclass
class Piece:
    """One phase or sweep, as it was handed in and as it left things."""

    name: str
    is_phase: bool
    """Whether it optimises."""
    begins: State
    """The first part that trains; nothing in a sweep."""
    head: State
    """The head over all classes; nothing in a sweep."""
    idle: list[tuple[torch.nn.Module, State]]
    """What is not to change, and what it was: frozen parts; all that a sweep passes through."""
    still: list[tuple[torch.nn.Module, State]]
    """What does not train of the parts that change otherwise: their other parameters."""
    num_kept: int
    """Exemplars in memory."""
    left: list[State] = field(default_factory=list)
    """What the first was when the piece was done."""
    still_left: list[State] = field(default_factory=list)
    """What the second was then."""


@final
@dataclass
class Step:
    """What was seen during one task."""

    old: State = field(default_factory=dict)
    """The network before the task."""
    new: State = field(default_factory=dict)
    """The network after it."""
    num_backbones: int = 0
    pieces: list[Piece] = field(default_factory=list)
    exemplars: Mapping[int, Tensor] = field(default_factory=dict)
    """Pixels per class in memory after the task."""
    candidates: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Pixels and features per class that were herded."""
    parts: Mapping[str, State] = field(default_factory=dict)
    """The tensors of the method's whole state after the task."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The small facts of the state."""
    expected_bytes: Mapping[bool, int] = field(default_factory=dict)
    """Bytes that were expected of the tensors before, by whether a backbone would be added."""
    update: UpdateRecord | None = None
    refusal: str = ""

    @property
    def phases(self) -> list[Piece]:
        """The pieces that optimise."""
        return [piece for piece in self.pieces if piece.is_phase]


@final
class Recording:
    """One learner over the whole stream, and what was seen in each task."""

    def __init__(self, method: BaseMethodSettings) -> None:
        self.learner = learner(method)
        self.steps: list[Step] = []
        self.reads = ReadCounts()
        """Owners and goings-on are tasks by their place in the stream: "0", "1", …"""
        watch(self.learner, self._before, self._after)
        for number, counts in enumerate(STREAM):
            self._learn(str(number), counts)

    def _learn(self, number: str, counts: Mapping[int, int]) -> None:
        step, data = Step(), self.reads.counted(labelled(counts), number)
        self.steps.append(step)
        method = self.learner.method
        if self.learner.history:
            step.old = state(method.network)
        num_classes = max(len(self.learner.class_names), *(index + 1 for index in counts))
        step.expected_bytes = {
            grows: method.state.bytes_after(num_classes, int(grows)) for grows in (False, True)
        }
        self.reads.now = number
        try:
            step.update = teach(self.learner, data)
        except ValueError as refusal:
            step.refusal = str(refusal)
        self.reads.now = "the test"
        method = self.learner.method
        step.new = state(method.network)
        step.parts = kept_parts(self.learner)
        step.values = method.state.collect().values
        step.num_backbones = len(method.network.backbones)
        step.exemplars = {
            index: pixels(method.memory.of_class(index)) for index in method.memory.classes
        }

    def _before(self, item: Work) -> None:
        is_phase = isinstance(item, Phase | Rounds)
        first = item.phases[0].parts if isinstance(item, Phase | Rounds) else {}
        trained = [part for part in first.values() if part.trains]
        kept, still = untouched(item)
        piece = Piece(
            name=item.name,
            is_phase=is_phase,
            begins=state(trained[0].module) if trained else {},
            head=state(first["head"].module) if "head" in first else {},
            idle=[(module, state(module)) for module in kept],
            still=[(module, parameters(module, names)) for module, names in still],
            num_kept=len(self.learner.method.memory),
        )
        assert bool(trained) == is_phase
        self.steps[-1].pieces.append(piece)

    def _after(self, item: Work, result: Any) -> None:
        step, piece = self.steps[-1], self.steps[-1].pieces[-1]
        piece.left = [state(module) for module, _ in piece.idle]
        piece.still_left = [parameters(module, list(was)) for module, was in piece.still]
        if isinstance(item, Sweep) and item.name == "herd":
            labels, self.reads.now = item.data.labels, "the test"
            step.candidates = {
                index: (pixels(item.data.of_class(index).images), result[labels == index])
                for index in set(labels.tolist())
            }
            self.reads.now = str(len(self.steps) - 1)


class Recordings:
    """Runs over the whole stream, each made once when a test first asks for it."""

    def __init__(self, methods: Mapping[str, BaseMethodSettings]) -> None:
        self._methods = methods
        self._made: dict[str, Recording] = {}

    def __getitem__(self, variant: str) -> Recording:
        if variant not in self._made:
            self._made[variant] = Recording(self._methods[variant])
        return self._made[variant]


@final
class Culprit:
    """Makes one item of an update fail: by a NaN in a phase's head, or outright in a sweep."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.armed = False

    def __call__(self, item: Work) -> None:
        if not self.armed or item.name != self.name:
            return
        if isinstance(item, Sweep):
            raise OSError("out of luck")
        parts = item.parts if isinstance(item, GradientSweep) else item.phases[0].parts
        *_, last = (part for part in parts.values() if part.trains)
        with torch.no_grad():
            next(parts.get("head", last).module.parameters()).fill_(float("nan"))


def untouched(item: Work) -> tuple[list[torch.nn.Module], list[tuple[torch.nn.Module, list[str]]]]:
    """What a piece of work must leave alone: whole modules, and parameters of the others.

    A phase may change what its parts say; a sweep nothing, and one with gradients neither, but for
    an exception.
    """
    works = item.phases if isinstance(item, Phase | Rounds) else [item]
    uses: dict[int, list[Part]] = {}
    for work in works:
        for part in work.parts.values():
            uses.setdefault(id(part.module), []).append(part)
    is_phase = isinstance(item, Phase | Rounds)
    idle, still = [], []
    for own in uses.values():
        module = own[0].module
        if not (is_phase and any(part.changes for part in own)):
            idle.append(module)
            continue
        trained = {name for part in own for name in part.trained()}
        names = [name for name, _ in module.named_parameters() if name not in trained]
        if names:
            still.append((module, names))
    return idle, still


def parameters(module: torch.nn.Module, names: list[str]) -> State:
    """Copies of some parameters."""
    return {name: module.get_parameter(name).detach().clone() for name in names}


def teach(made: Learner, data: LabelledImages) -> UpdateRecord:
    return made.update(data.images, class_names(data))


def loaded(home: Path, num_learnt: int) -> Learner:
    """A saved learner, given the images back that it declares to keep; they are not saved."""
    made = Learner.load(home)
    for counts in STREAM[:num_learnt] if made.method.memory.keep_all else ():
        data = labelled(counts)
        made.recall(data.images, class_names(data))
    return made


def kept_parts(made: Learner) -> dict[str, dict[str, Tensor]]:
    """Copies of the tensors that a method would save."""
    parts = made.method.state.collect().parts
    return {part: {name: t.clone() for name, t in own.items()} for part, own in parts.items()}


def same_parts(one: Mapping[str, State], two: Mapping[str, State]) -> bool:
    return one.keys() == two.keys() and all(same(one[part], two[part]) for part in one)


def pixels(images: Images) -> Tensor:
    return images.gather(torch.arange(len(images)))


def moved(before: State, after: State) -> set[str]:
    """The last words of the names of what differs: ``running_mean``, ``weight``, …"""
    return {
        name.rpartition(".")[2] for name in before if not torch.equal(before[name], after[name])
    }
