"""The contract of every method, and the steps that methods share.

Shapes: B images, d features of a backbone, D of all backbones together, K classes.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar, final

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from grace.configs.load import ConfigWarning
from grace.configs.methods import BaseMethodSettings
from grace.configs.recipe import Recipe
from grace.data.images import LabelledImages
from grace.data.joined import concatenate
from grace.data.memory import ExemplarMemory, class_mean, herd, nearest_mean
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Objective, Phase, Sweep, Work
from grace.engine.reducers import Collect
from grace.methods.outcome import Outcome as Outcome
from grace.methods.workshop import Workshop
from grace.networks.backbone import Backbone
from grace.networks.branching import split
from grace.networks.expandable import ExpandableNetwork
from grace.networks.heads import MASKED, LinearHead
from grace.networks.loading import load_exactly, load_tensors, refuse_unlike
from grace.objectives.classification import cross_entropy
from grace.storage.errors import DamagedError
from grace.storage.tensors import encoded_size

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
SettingsT = TypeVar("SettingsT", bound=BaseMethodSettings)

Steps = Generator[Work, Any, T]
"""What ``learn`` and its parts are: they yield work, get its result back, and return T."""


@final
@dataclass(frozen=True)
class Classifier:
    """A predictor: backbones whose concatenated features (B, D) are scored, (B, K)."""

    backbones: Sequence[nn.Module]
    score: Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True)
class MethodState:
    """All that a method must find again to go on as if it had never stopped, but its exemplars.

    Args:
        values: small facts that JSON can hold.
        parts: tensors by name, in groups that change together: a backbone, a head.
    """

    values: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, Tensor]]


def read_values(model: type[ModelT], values: Mapping[str, Any], method: str) -> ModelT:
    """Check a method's saved values against the model of what it writes.

    Raises:
        DamagedError: naming the first thing that is wrong.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ascii(".".join(str(part) for part in detail["loc"])[:200])[1:-1]
        raise DamagedError(f"the saved {method} is damaged: {where}: {detail['msg']}") from error


def network_bytes(network: ExpandableNetwork, num_more: int, num_classes: int) -> int:
    """Bytes that a network's parts would take with more backbones, like its last, and classes.

    They are those of the files, headers included.
    """
    backbones = [*network.backbones, *[network.backbones[-1]] * num_more]
    shape = (num_classes, sum(backbone.feature_dim for backbone in backbones))
    num_bytes = encoded_size({"weight": (shape, torch.float32), "bias": (shape[:1], torch.float32)})
    for part in backbones if network.trunk is None else [network.trunk, *backbones]:
        state = part.state_dict()
        num_bytes += encoded_size({name: (t.shape, t.dtype) for name, t in state.items()})
    return num_bytes


class Method(ABC, Generic[SettingsT]):
    """An algorithm that learns task after task.

    ``learn`` yields everything that costs or decides; between two yields nothing runs but what
    stands there. Its frame is the same for all: a method says what it does in ``later_task`` and,
    where that differs, in ``first_task`` and ``remember``. It starts without a network: its first
    task builds it.
    """

    uses_memory: ClassVar[bool] = True
    """Whether exemplars of old classes are kept."""
    keeps_all_images: ClassVar[bool] = False
    """Whether every image is kept: the upper bound alone may."""
    adds_backbones: ClassVar[bool] = False
    """Whether every later task adds a backbone, with no way back."""
    shares_trunk: ClassVar[bool] = False
    """Whether its backbones share all but their last stage."""
    freezes_old_network: ClassVar[bool] = False
    """Whether later tasks train beside the network as it was, frozen."""
    compares_new_classes_only: ClassVar[bool] = False
    """Whether later tasks tell their new classes from each other only: a lone one is not learnt."""
    learns_known_classes: ClassVar[bool] = False
    """Whether it has a rule for a later task of known classes only; without one it refuses."""

    def __init__(self, settings: SettingsT, workshop: Workshop, memory: ExemplarMemory) -> None:
        self.settings = settings
        self.workshop = workshop
        self.memory = memory
        self._network: ExpandableNetwork | None = None
        self._class_means: Tensor | None = None

    @property
    def name(self) -> str:
        """What people call the method."""
        return self.workshop.settings.method.name

    @property
    def network(self) -> ExpandableNetwork:
        """The network as it stands.

        Raises:
            ValueError: before the first task.
        """
        if self._network is None:
            raise ValueError("nothing has been learnt yet: learn a first task")
        return self._network

    @network.setter
    def network(self, network: ExpandableNetwork) -> None:
        self._network = network

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
            self._refuse_known_classes(task)
            self._warn_of_lone_class(task)
            outcome = yield from self.later_task(task)
        yield from self.remember(task)
        return outcome

    def first_task(self, task: Task) -> Steps[Outcome]:
        """Train one fresh backbone and head on the first task with cross-entropy."""
        backbone = self.workshop.backbone(task.number)
        self.network = self.fresh_network(task, backbone)
        # Uncut, so that it is one phase for all methods, whose outcome they can share.
        phase = self.classification_phase("base", self.settings.base, task.data, backbone=backbone)
        yield replace(phase, is_common=self._begins_like_others())
        return Outcome(verdict="base")

    @classmethod
    def _begins_like_others(cls) -> bool:
        """Whether all that makes the first phase is this class's own."""
        made_by = ("classification_phase", "classification", "class_head", "fresh_network")
        return all(getattr(cls, name) is getattr(Method, name) for name in made_by)

    @abstractmethod
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Train on a later task's images, and on exemplars where there are any."""

    def _refuse_known_classes(self, task: Task) -> None:
        if task.num_new_classes == 0 and not self.learns_known_classes:
            raise ValueError(
                f"task {task.number} has no new class and this method has no rule for that: "
                "add images of a new class, or use grace, icarl or replay"
            )

    @classmethod
    def leaves_lone_class(cls, number: int, num_new: int) -> bool:
        """Say whether task ``number`` has one new class, and no other that it is compared with.

        The softmax over one logit is 1: neither loss nor gradient.
        """
        return cls.compares_new_classes_only and number > 1 and num_new == 1

    def _warn_of_lone_class(self, task: Task) -> None:
        if self.leaves_lone_class(task.number, task.num_new_classes):
            warnings.warn(
                f"task {task.number} has one new class and {self.name} compares new classes with "
                "each other only: it is not learnt",
                ConfigWarning,
                stacklevel=2,
            )

    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, the primary one first: the one that is reported and exported."""
        if self._network is None:
            return {}
        backbones = self._network.extractors
        classifiers = {"linear": Classifier(backbones, self._network.head)}
        means = self._class_means
        if means is not None:
            absent = means.norm(dim=1) == 0
            classifiers["nearest_mean"] = Classifier(
                backbones,
                lambda features: nearest_mean(features.float(), means).masked_fill(absent, MASKED),
            )
        return classifiers

    def forget(self, classes: Collection[int]) -> None:
        """Hide these old classes and no others everywhere, and let their exemplars go.

        Their rows of the head and what the weights know of them stay.
        """
        for index in classes:
            self.memory.forget(index)
            if self._class_means is not None:
                self._class_means[index] = 0
        if self._network is not None:
            self._network.head.mask(classes)

    def state(self) -> MethodState:
        """Give the method's state; the tensors are its own, not copies."""
        parts: dict[str, Mapping[str, Tensor]] = {}
        if self._network is not None:
            parts |= self._network.parts()
        if self._class_means is not None:
            parts["class_means"] = {"means": self._class_means}
        parts |= self.own_parts()
        return MethodState(self.own_values(), parts)

    def restore(self, state: MethodState, num_classes: int) -> None:
        """Put a state of ``num_classes`` classes in place of what is there.

        Raises:
            DamagedError: if it is no state that this method could have given.
        """
        parts = dict(state.parts)
        means = parts.pop("class_means", None)
        self._network = self._class_means = None
        network = self.restored_network(parts, num_classes)
        if network is not None:
            self._network = network
            if means is not None:
                shape = (num_classes, network.feature_dim)
                own = torch.empty(shape, device=self.workshop.device.torch_device)
                load_tensors({"means": own}, means, "class means")
                self._class_means = own
        elif means is not None:
            raise DamagedError(f"the saved {self.name} has class means but no network")
        self.restore_parts(parts)
        self.restore_values(state.values)

    def restored_network(
        self, parts: dict[str, Mapping[str, Tensor]], num_classes: int, of: str = ""
    ) -> ExpandableNetwork | None:
        """Take a network's parts out of ``parts`` and put it together; none if there are none.

        Args:
            parts: of a state.
            num_classes: outputs of its head.
            of: what the names of its parts start with.

        Raises:
            DamagedError: if they are not the parts of such a network.
        """
        count = sum(name.startswith(f"{of}backbone.") for name in parts)
        if not count:
            return None
        self._refuse_unlike(parts, count, num_classes, of)
        trunk: nn.Module | None = None
        backbones: list[Backbone] = []
        for i in range(count):
            backbone = self.workshop.backbone("restored")
            if self.shares_trunk:
                trunk, backbone = split(backbone)
            load_exactly(backbone, parts.pop(f"{of}backbone.{i}"), f"{of}backbone {i}")
            backbones.append(backbone)
        if trunk is not None:
            load_exactly(trunk, parts.pop(f"{of}trunk"), f"{of}trunk")
        width = sum(backbone.feature_dim for backbone in backbones)
        head = self.workshop.head(width, num_classes, "restored").requires_grad_(False).eval()
        load_exactly(head, parts.pop(f"{of}head"), f"{of}head")
        return ExpandableNetwork(backbones, head, trunk).eval()

    def refuse_unfit(self, shape: tuple[int, int, int]) -> None:
        """Try what was restored on one image of shape (C, H, W).

        Raises:
            ValueError: when its backbone cannot take such images.
        """
        network = self._network
        if network is not None:
            backbone, trunk = network.backbones[0], network.trunk
            probe = backbone if trunk is None else nn.Sequential(trunk, backbone)
            self.workshop.refuse_unfit_backbone(shape, probe)

    def _refuse_unlike(
        self,
        parts: Mapping[str, Mapping[str, Tensor]],
        count: int,
        num_classes: int,
        of: str,
    ) -> None:
        """Compare a network's tensors with what they should be before anything large is made."""
        sketch = self.workshop.sketch()
        if self.shares_trunk:
            trunk, sketch = split(sketch)
            refuse_unlike(trunk.state_dict(), parts.get(f"{of}trunk", {}), f"{of}trunk")
        own = sketch.state_dict()
        for i in range(count):
            refuse_unlike(own, parts.get(f"{of}backbone.{i}", {}), f"{of}backbone {i}")
        weight = torch.empty(num_classes, count * sketch.feature_dim, device="meta")
        head = {"weight": weight, "bias": weight[:, 0]}
        refuse_unlike(head, parts.get(f"{of}head", {}), f"{of}head")

    def own_values(self) -> Mapping[str, Any]:
        """Give what ``restore_values`` needs, as JSON can hold it; nothing by default."""
        return {}

    def restore_values(self, values: Mapping[str, Any]) -> None:
        """Take back what ``own_values`` gave.

        Raises:
            DamagedError: if it gave no such thing.
        """
        if values:
            raise DamagedError(f"the saved {self.name} has values that it never writes")

    def own_parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Give the tensors that a method keeps beside network and class means; none by default.

        What is given here is counted in ``bytes_after``.
        """
        return {}

    def restore_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take back what ``own_parts`` gave; network and class means are in place again.

        Raises:
            DamagedError: if it gave no such thing.
        """
        if parts:
            raise DamagedError(f"the saved {self.name} has parts that it never writes")

    def bytes_after(self, task: Task, *, grows: bool) -> int:
        """Bytes of weights and method state once a task is learnt, with one backbone more or not.

        They are those of the files, headers included. The first task builds a backbone in any case.
        """
        network = self._network or self.fresh_network(task)
        num_more = int(grows and self._network is not None)
        num_bytes = network_bytes(network, num_more, task.num_classes)
        if self._herds:
            width = network.feature_dim + num_more * network.backbones[-1].feature_dim
            num_bytes += encoded_size({"means": ((task.num_classes, width), torch.float32)})
        return num_bytes

    def has_room_to_grow(self, task: Task) -> bool:
        """Whether one backbone more leaves room for an exemplar of each class."""
        room = self.memory.room
        return room is None or room.quota(task.num_live, self.bytes_after(task, grows=True)) > 0

    def fresh_network(self, task: Task, backbone: Backbone | None = None) -> ExpandableNetwork:
        """Make a fresh head over a task's classes for one backbone, a fresh one unless given."""
        trunk, branch = None, backbone or self.workshop.backbone(task.number)
        if self.shares_trunk:
            trunk, branch = split(branch)
        head = self.class_head(task, branch.feature_dim, "main")
        return ExpandableNetwork([branch], head, trunk)

    def class_head(self, task: Task, in_features: int, purpose: str) -> LinearHead:
        """Make a fresh head over all classes of a task, the forgotten ones masked."""
        head = self.workshop.head(in_features, task.num_classes, purpose, task.number)
        head.mask(task.forgotten)
        return head

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
            backbones=[backbone or self.single_backbone],
            heads=[self.network.head],
            objective=objective or self.classification(),
            recipe=recipe,
            data=data,
        )

    def classification(self) -> Objective:
        """Make the objective that is cross-entropy over all classes alone."""
        head = self.network.head

        def objective(batch: Batch) -> dict[str, Loss]:
            return {"classification": Loss(cross_entropy(head(batch.learned[0]), batch.labels))}

        return objective

    @property
    def single_backbone(self) -> Backbone:
        """The network's backbone, of a method that never has more than one."""
        (backbone,) = self.network.backbones
        return backbone

    def grow_head(self, task: Task) -> None:
        """Give the head the rows of a task's new classes; the backbones stay."""
        network = self.network
        head = self.workshop.grown_head(
            network.head, network.feature_dim, task.num_classes, "main", task.number
        )
        self.network = ExpandableNetwork(list(network.backbones), head, network.trunk)

    def with_exemplars(self, task: Task) -> LabelledImages:
        """The task's images followed by the exemplars: D̃_t."""
        return concatenate([task.data, self.memory.data()])

    def remember(self, task: Task, herd_with: ExpandableNetwork | None = None) -> Steps[None]:
        """Update the exemplars and the class means (spec §1.9); keep none, or all, if so declared.

        Old classes keep their first exemplars. Each class of the task is herded from its images,
        those of a known class together with its stored ones. The means are the present network's;
        so are the features that are herded, unless another network is given.
        """
        if self.keeps_all_images:
            self.keep(task.data)
        if not self._herds:
            return
        quota = self.memory.quota(task.num_live, self.bytes_after(task, grows=False))
        if not quota:
            return
        yield from self._herd(task, quota, herd_with or self.network)
        exemplars = self.memory.data()
        features = yield self._features("class means", exemplars, self.network)
        # The row of a class without exemplars, one that was forgotten, stays 0.
        means = torch.zeros(task.num_classes, features.shape[1])
        for index in self.memory.classes:
            means[index] = class_mean(features[exemplars.labels == index])
        self._class_means = means.to(self.workshop.device.torch_device)

    @property
    def _herds(self) -> bool:
        return self.uses_memory and not self.keeps_all_images

    def _herd(self, task: Task, quota: int, network: ExpandableNetwork) -> Steps[None]:
        exemplars = self.memory.data()
        stored = torch.isin(exemplars.labels, torch.tensor(task.present_classes))
        known = exemplars.subset(stored.nonzero().flatten())
        candidates = concatenate([known, task.data])
        features = yield self._features("herd", candidates, network)
        self.memory.reduce(quota)
        for index in task.present_classes:
            places = (candidates.labels == index).nonzero().flatten()
            order = herd(features[places], quota)
            self.memory.store(index, candidates.images.subset(places), order)

    @staticmethod
    def _features(name: str, data: LabelledImages, network: ExpandableNetwork) -> Sweep:
        return Sweep(name=name, backbones=network.extractors, data=data, reducer=Collect())

    def keep(self, data: LabelledImages) -> None:
        """Put all images into a memory that keeps everything."""
        present = sorted(set(data.labels.tolist()))
        data = concatenate([self.memory.data(), data])
        for index in present:
            images = data.of_class(index).images
            self.memory.store(index, images, torch.arange(len(images)))
