"""The contract of every method: what it must say, and what it gets.

Shapes: B images, D features of all backbones together, K classes.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar, final

import torch

from grace.base.errors import GraceError
from grace.data.images import LabelledImages, concatenate
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Objective, Phase, Work
from grace.methods.classification import classification, plain_objective
from grace.methods.classifier import Classifier as Classifier
from grace.methods.feature_cache import FeatureCache
from grace.methods.herding import ClassMeans, update_exemplars
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import trained_network
from grace.methods.outcome import Outcome as Outcome
from grace.methods.planning import Coming, PlannedPhase, usual_plan
from grace.methods.saturation_probe import measured
from grace.methods.state import DeclaredState
from grace.nn.backbone import Backbone
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import Head, LinearHead
from grace.settings.experiment import MeasureSettings
from grace.settings.load import ConfigWarning
from grace.settings.method import AnyMethodSettings, BaseMethodSettings, Traits
from grace.settings.recipe import Recipe
from grace.settings.registry import METHODS

T = TypeVar("T")

Steps = Generator[Work, Any, T]
"""The type of ``learn`` and of its parts: they yield work, receive its result, and return T."""


class Method(ABC):
    """An algorithm that learns task after task.

    ``learn`` yields every phase and sweep to the engine; between two yields only the code that
    stands there runs. A method implements ``later_task`` and overrides ``first_task`` and
    ``remember`` where it differs from the others. What it saves between tasks it declares in
    ``state``. It has no network until its first task builds one.

    Its file also says what it is: the docstring is its page, and ``traits`` and the class
    ``Settings`` are what other code asks for. The contract suite tests each of its ``variants``,
    settings by name (the plain ones are ""), and accepts its ``exceptions``, by kind reasons for
    phases or sweeps: "changes" (what else is frozen or grown is not there), "chooses" (it reads
    some of the images), "alone" (the old network is not beside it), "headless" (it trains no grown
    head).
    """

    traits: ClassVar[Traits] = Traits()
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    exceptions: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    settings: Any
    """Of the method's own class ``Settings``."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for file in METHODS.values():
            if file.target == f"{cls.__module__}:{cls.__qualname__}":
                # There is one class of them: that which is read without torch.
                type.__setattr__(cls, "Settings", file.settings)

    def __init__(
        self, settings: AnyMethodSettings, factory: ModuleFactory, memory: ExemplarMemory
    ) -> None:
        self.settings = settings
        self.factory = replace(factory, make_head=partial(self.make_head, settings))
        self.memory = memory
        self.state = DeclaredState(self.factory)
        self._class_means: ClassMeans | None = None
        self.features = None if settings.traits.trains_backbone else FeatureCache()
        """Features of images computed before, if the backbone never changes."""
        if settings.traits.memory == "exemplars" and settings.traits.trains_backbone:
            self._class_means = ClassMeans(self.state, self.factory.device.torch_device)

    @property
    def network(self) -> ExpandableNetwork:
        """The network as it stands.

        Raises:
            GraceError: before the first task.
        """
        network = self.state.network.value
        if network is None:
            raise GraceError("nothing has been learnt yet", "learn a first task")
        return network

    @network.setter
    def network(self, network: ExpandableNetwork) -> None:
        self.state.network.value = network

    @final
    def learn(self, task: Task, probe: MeasureSettings | None = None) -> Steps[Outcome]:
        """Learn a task's images: yield every phase and sweep, return the outcome.

        Args:
            task: its images and classes.
            probe: measures of the last backbone to take before the exemplars change; ``None``:
                none.

        Raises:
            GraceError: for a task of known classes only that the method has no rule for.

        Warns:
            ConfigWarning: the task has one new class, and the method learns new classes by
                comparing them with each other.
        """
        if task.number == 1:
            outcome = yield from self.first_task(task)
        else:
            _refuse_or_warn(self.settings, task)
            outcome = yield from self.later_task(task)
        network = self.state.network.value
        if probe is not None and probe.measures and network is not None:
            measures = yield from measured(network, self.with_exemplars(task), probe)
            outcome = replace(outcome, measures=tuple(measures.items()))
        yield from self.remember(task)
        return outcome

    def first_task(self, task: Task) -> Steps[Outcome]:
        """Train one fresh backbone and head on the first task with cross-entropy."""
        backbone = self.factory.backbone(task.number)
        self.network = self.fresh_network(task, backbone)
        # Uncut, so that it is one phase for all methods, whose outcome they can share. Only a trunk
        # that never changes stands apart.
        uncut = None if self.factory.freezes_trunk else backbone
        assert isinstance(self.settings, BaseMethodSettings), "without a base recipe: override"
        recipe = self.settings.base
        objective = plain_objective(self.settings, self.factory, task, task.data)
        yield self.classification_phase("base", recipe, task.data, objective, uncut)
        return Outcome(verdict="start")

    @abstractmethod
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Train on a later task's images, and on exemplars if the method has a memory."""

    def remember(self, task: Task, herd_with: ExpandableNetwork | None = None) -> Steps[None]:
        """Update the exemplars and the class means, as the method's traits say.

        Old classes keep their first exemplars. Each class of the task is herded from its images;
        a known class also from its stored ones. The class means are always the present network's.

        Args:
            task: that was just learnt.
            herd_with: its features choose the exemplars; ``None``: the present network's.
        """
        if self.settings.traits.memory == "all images":
            self.memory.keep(task.data)
        if self.settings.traits.memory != "exemplars":
            return
        beside = self.state.bytes_after(task.num_classes)
        quota = self.memory.quota(task.num_remembered, beside, task.data.labels)
        if not quota:
            return
        network = herd_with or self.network
        yield from update_exemplars(self.memory, task, quota, network, self.features)
        self.memory.fit(beside)
        if self._class_means is not None:
            yield from self._class_means.update(self.memory, task.num_classes, self.network)

    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, the primary one first: the one that is reported and exported."""
        network = self.state.network.value
        if network is None:
            return {}
        classifiers = {"linear": Classifier(network.extractors, network.head)}
        if self._class_means is not None:
            nearest = self._class_means.classifier(network.extractors)
            classifiers |= {} if nearest is None else {"nearest_mean": nearest}
        return classifiers

    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        """Estimate what a task will cost: its phases, their images and their passes."""
        return usual_plan(self.settings, coming)

    @staticmethod
    def make_head(
        settings: Any,  # noqa: ANN401 - the method's own
        in_features: int,
        num_classes: int,
        draws: torch.Generator | None,
    ) -> Head:
        """Make the head of the method's networks.

        Args:
            settings: the method's own.
            in_features: width D of the concatenated features.
            num_classes: K.
            draws: of its weights; ``None`` if only its shapes matter.
        """
        return LinearHead(in_features, num_classes, draws)

    def has_room_to_grow(self, task: Task) -> bool:
        """Return True if one more backbone leaves room for an exemplar of each class."""
        room = self.memory.room
        if room is None:
            return True
        weight_bytes = self.state.bytes_after(task.num_classes, 1)
        return room.quota(task.num_remembered, weight_bytes) > 0

    def fresh_network(self, task: Task, backbone: Backbone | None = None) -> ExpandableNetwork:
        """Make a network of one backbone, a fresh one if none is given, and a fresh head."""
        backbone = backbone or self.factory.backbone(task.number)
        network = self.factory.first_network(task.num_classes, backbone, "main", task.number)
        network.head.mask(task.forgotten)
        return network

    def class_head(self, task: Task, in_features: int, purpose: str) -> Head:
        """Make a fresh head over all classes of a task; forgotten classes are masked.

        Args:
            task: its K classes.
            in_features: width of the features.
            purpose: seeds the draws of the weights.
        """
        head = self.factory.head(in_features, task.num_classes, purpose, task.number)
        head.mask(task.forgotten)
        return head

    def grow_head(self, task: Task) -> None:
        """Add the rows of a task's new classes to the head; the backbones do not change."""
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
        """Make a phase that trains the single backbone and its head.

        Args:
            name: of the phase.
            recipe: epochs, batch size, optimiser, schedule.
            data: images to train on.
            objective: ``None``: cross-entropy over all classes, without a class prior.
            backbone: replaces the network's own; see ``trained_network``.
        """
        return Phase(
            name=name,
            parts=trained_network(self.network, backbone),
            objective=objective or classification,
            recipe=recipe,
            data=data,
        )


def _refuse_or_warn(settings: AnyMethodSettings, task: Task) -> None:
    """Refuse a later task that the method has no rule for; warn if it cannot learn the task."""
    if task.num_new_classes == 0 and not settings.traits.learns_known_classes:
        able = [n for n, own in METHODS.items() if own.settings.traits.learns_known_classes]
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
