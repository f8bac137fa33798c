"""The contract of every method, and the steps that methods share.

Shapes: B images, D features of all backbones together, K classes.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from grace.configs.load import ConfigWarning
from grace.configs.methods import AnyMethodSettings, BaseMethodSettings
from grace.configs.recipe import Recipe
from grace.configs.registry import METHOD_SETTINGS
from grace.data.images import LabelledImages
from grace.data.joined import concatenate
from grace.data.memory import ExemplarMemory, nearest_mean
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Objective, Part, Phase, Work
from grace.methods.herding import class_means, update_exemplars
from grace.methods.kept import Kept, TensorsPlace
from grace.methods.module_factory import ModuleFactory, Outline
from grace.methods.outcome import Outcome as Outcome
from grace.methods.planning import Coming, PlannedPhase, usual_plan
from grace.networks.backbone import Backbone
from grace.networks.expandable import ExpandableNetwork
from grace.networks.heads import MASKED, Head, LinearHead
from grace.objectives.classification import cross_entropy
from grace.text.refusals import GraceError

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound=AnyMethodSettings)

Steps = Generator[Work, Any, T]
"""What ``learn`` and its parts are: they yield work, get its result back, and return T."""


_FIRST_PHASE = ("make_head", "fresh_network", "classification_phase")
"""What makes the first phase. If a method overrides one of these, its first phase is its own."""


@final
@dataclass(frozen=True)
class Classifier:
    """A predictor: backbones whose concatenated features (B, D) are scored, (B, K)."""

    backbones: Sequence[nn.Module]
    score: Callable[[Tensor], Tensor]


class Method(ABC, Generic[SettingsT]):
    """An algorithm that learns task after task.

    ``learn`` yields everything that costs or decides; between two yields nothing runs but what
    stands there. Its frame is the same for all: a method says what it does in ``later_task`` and,
    where that differs, in ``first_task`` and ``remember``. What it keeps between tasks it declares
    with ``kept``. It starts without a network: its first task builds it.
    """

    def __init__(self, settings: SettingsT, factory: ModuleFactory, memory: ExemplarMemory) -> None:
        self.settings = settings
        self.factory = replace(factory, make_head=partial(self.make_head, settings))
        self.memory = memory
        self.kept = Kept(self.factory)
        self._class_means: TensorsPlace | None = None
        if settings.traits.memory == "exemplars":
            self._class_means = self.kept.tensors_place(
                "class_means", _like_class_means, is_needed=False, rows=True
            )

    @property
    def network(self) -> ExpandableNetwork:
        """The network as it stands.

        Raises:
            ValueError: before the first task.
        """
        network = self.kept.network.value
        if network is None:
            raise GraceError("nothing has been learnt yet", "learn a first task")
        return network

    @network.setter
    def network(self, network: ExpandableNetwork) -> None:
        self.kept.network.value = network

    @final
    def learn(self, task: Task) -> Steps[Outcome]:
        """Learn a task's images; yield every phase and sweep, return the outcome.

        Raises:
            ValueError: for a task of known classes only that the method has no rule for.

        Warns:
            ConfigWarning: the task's one new class has no other that the method compares it with.
        """
        if task.number == 1:
            outcome = yield from self.first_task(task)
        else:
            _refuse_or_warn(self.settings, task)
            outcome = yield from self.later_task(task)
        yield from self.remember(task)
        return outcome

    def first_task(self, task: Task) -> Steps[Outcome]:
        """Train one fresh backbone and head on the first task with cross-entropy."""
        backbone = self.factory.backbone(task.number)
        self.network = self.fresh_network(task, backbone)
        # Uncut, so that it is one phase for all methods, whose outcome they can share.
        assert isinstance(self.settings, BaseMethodSettings), "without a base recipe: override"
        recipe = self.settings.base
        phase = self.classification_phase("base", recipe, task.data, backbone=backbone)
        own = type(self)
        is_common = all(getattr(own, name) is getattr(Method, name) for name in _FIRST_PHASE)
        yield replace(phase, is_common=is_common)
        return Outcome(verdict="base")

    @abstractmethod
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Train on a later task's images, and on exemplars where there are any."""

    def remember(self, task: Task, herd_with: ExpandableNetwork | None = None) -> Steps[None]:
        """Update the exemplars and the class means; keep none, or all, if the traits say so.

        Old classes keep their first exemplars. Each class of the task is herded from its images,
        those of a known class together with its stored ones. The means are the present network's;
        so are the features that are herded, unless another network is given.
        """
        if self.settings.traits.memory == "all images":
            self.memory.keep(task.data)
        if self._class_means is None:
            return
        quota = self.memory.quota(task.num_live, self.kept.bytes_after(task.num_classes))
        if not quota:
            return
        yield from update_exemplars(self.memory, task, quota, herd_with or self.network)
        means = yield from class_means(self.memory, task.num_classes, self.network)
        self._class_means.value = {"means": means.to(self.factory.device.torch_device)}

    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, the primary one first: the one that is reported and exported."""
        network = self.kept.network.value
        if network is None:
            return {}
        backbones = network.extractors
        classifiers = {"linear": Classifier(backbones, network.head)}
        if self._class_means is not None and self._class_means.value is not None:
            means = self._class_means.value["means"]
            absent = means.norm(dim=1) == 0
            classifiers["nearest_mean"] = Classifier(
                backbones,
                lambda features: nearest_mean(features.float(), means).masked_fill(absent, MASKED),
            )
        return classifiers

    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        """Say what a task will cost: its phases, their images and their passes."""
        return usual_plan(self.settings, coming)

    @staticmethod
    def make_head(
        settings: Any,  # noqa: ANN401 - the method's own
        in_features: int,
        num_classes: int,
        draws: torch.Generator | None,
    ) -> Head:
        """Make the head of the method's networks; without draws only its shapes matter."""
        return LinearHead(in_features, num_classes, draws)

    def has_room_to_grow(self, task: Task) -> bool:
        """Return whether one backbone more leaves room for an exemplar of each class."""
        room = self.memory.room
        return (
            room is None
            or room.quota(task.num_live, self.kept.bytes_after(task.num_classes, 1)) > 0
        )

    def fresh_network(self, task: Task, backbone: Backbone | None = None) -> ExpandableNetwork:
        """Make a fresh head over a task's classes for one backbone, a fresh one unless given."""
        backbone = backbone or self.factory.backbone(task.number)
        network = self.factory.first_network(task.num_classes, backbone, "main", task.number)
        network.head.mask(task.forgotten)
        return network

    def class_head(self, task: Task, in_features: int, purpose: str) -> Head:
        """Make a fresh head over all classes of a task, the forgotten ones masked."""
        head = self.factory.head(in_features, task.num_classes, purpose, task.number)
        head.mask(task.forgotten)
        return head

    def grow_head(self, task: Task) -> None:
        """Give the head the rows of a task's new classes; the backbones stay."""
        network = self.network
        head = self.factory.grown_head(
            network.head, network.feature_dim, task.num_classes, "main", task.number
        )
        self.network = ExpandableNetwork(list(network.backbones), head, network.trunk)

    def with_exemplars(self, task: Task) -> LabelledImages:
        """Return the task's images followed by the exemplars: D̃_t."""
        return concatenate([task.data, self.memory.data()])

    def classification_phase(
        self,
        name: str,
        recipe: Recipe,
        data: LabelledImages,
        objective: Objective | None = None,
        backbone: Backbone | None = None,
    ) -> Phase:
        """Train the single backbone and its head, with cross-entropy unless told otherwise."""
        return Phase(
            name=name,
            parts=single(self.network, backbone),
            objective=objective or classification,
            recipe=recipe,
            data=data,
        )


def single(network: ExpandableNetwork, backbone: Backbone | None = None) -> dict[str, Part]:
    """Name the parts of a network of one backbone that trains, its head included.

    Args:
        network: of one backbone, without a trunk unless ``backbone`` is given.
        backbone: in place of the network's, which was cut from it.
    """
    return {
        "backbone.0": Part(backbone or network.backbone),
        "head": Part(network.head, ["backbone.0"]),
    }


def frozen_network(network: ExpandableNetwork, *, has_head: bool = True) -> dict[str, Part]:
    """Name the parts of an old network that does not train: "old.0", …, "old.head".

    Args:
        network: its backbones read "trunk" where they share one.
        has_head: whether its logits are wanted too.
    """
    parts: dict[str, Part] = {}
    if network.trunk is not None:
        parts["trunk"] = Part(network.trunk, trains=False)
    source = "images" if network.trunk is None else "trunk"
    names = [f"old.{i}" for i in range(len(network.backbones))]
    for name, backbone in zip(names, network.backbones, strict=True):
        parts[name] = Part(backbone, [source], trains=False)
    if has_head:
        parts["old.head"] = Part(network.head, names, trains=False)
    return parts


def classification(batch: Batch) -> dict[str, Loss]:
    """Cross-entropy of the part "head" over all classes: the objective of a plain phase."""
    return {"classification": Loss(cross_entropy(batch["head"], batch.labels))}


def _like_class_means(network: Outline) -> Mapping[str, Tensor]:
    shape = (network.head.num_classes, network.feature_dim)
    return {"means": torch.empty(shape, device="meta")}


def _refuse_or_warn(settings: AnyMethodSettings, task: Task) -> None:
    """Refuse a later task that the method has no rule for; warn of one that it cannot learn."""
    if task.num_new_classes == 0 and not settings.traits.learns_known_classes:
        able = [n for n, own in METHOD_SETTINGS.items() if own.traits.learns_known_classes]
        raise GraceError(
            f"task {task.number} has no new class and {settings.name} has no rule for that",
            f"add images of a new class, or use one of {', '.join(able)}",
        )
    if settings.traits.leaves_lone_class(task.number, task.num_new_classes):
        warnings.warn(
            f"task {task.number} has one new class and {settings.name} compares new classes with "
            "each other only: it is not learnt",
            ConfigWarning,
            stacklevel=3,
        )
