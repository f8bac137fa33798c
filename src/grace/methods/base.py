"""The contract of every method, and the steps that methods share.

Shapes: B images, d features of a backbone, D of all backbones together, K classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, final

import torch
from torch import Tensor, nn

from grace.configs.experiment import ExperimentSettings
from grace.configs.methods import BaseMethodSettings
from grace.configs.recipe import Recipe
from grace.data.images import LabelledImages
from grace.data.joined import concatenate
from grace.data.memory import ExemplarMemory, class_mean, herd, nearest_mean
from grace.data.scenario import Task
from grace.engine.device import Device
from grace.engine.phase import Batch, Loss, Phase, Sweep
from grace.engine.reducers import Collect
from grace.networks.backbone import Backbone
from grace.networks.build import build_backbone
from grace.networks.expandable import ExpandableNetwork
from grace.networks.heads import LinearHead, grown
from grace.objectives.classification import cross_entropy
from grace.randomness import generator

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound=BaseMethodSettings)

Steps = Generator[Phase | Sweep, Any, T]
"""What ``learn`` and its parts are: they yield work, get its result back, and return T."""


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a method decided in a task.

    Args:
        verdict: "base", "grow", "compress", "refresh", "update" or "skip".
        saturation: normalised effective rank that decided, in [0, 1].
        threshold: threshold it was compared with.
        merge_weight: weight w of the mergeable backbone in the student; none for a fresh student.
    """

    verdict: Literal["base", "grow", "compress", "refresh", "update", "skip"]
    saturation: float | None = None
    threshold: float | None = None
    merge_weight: float | None = None


@final
@dataclass(frozen=True)
class Classifier:
    """A predictor: backbones whose concatenated features (B, D) are scored, (B, K)."""

    backbones: Sequence[nn.Module]
    score: Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True)
class Workshop:
    """Makes fresh modules, on the device, seeded by what they are for."""

    settings: ExperimentSettings
    num_channels: int
    device: Device

    def backbone(self, *purpose: str | int) -> Backbone:
        """Build a fresh backbone in eval mode without gradients."""
        seed = self.settings.seeds.initialisation
        backbone = build_backbone(
            self.settings.backbone, self.num_channels, seed, "backbone", *purpose
        )
        return self.device.place(backbone).eval().requires_grad_(False)

    def refuse_unfit_backbone(self, shape: tuple[int, int, int]) -> None:
        """Try the backbone on one image of shape (C, H, W).

        Raises:
            ValueError: when there is no such backbone, or it cannot take such images.
        """
        backbone = self.backbone("probe")
        try:
            with torch.no_grad():
                backbone(torch.zeros(1, *shape, device=self.device.torch_device))
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().split("\n")[0]
            raise ValueError(
                f"backbone {self.settings.backbone.name} cannot take images of shape {shape} "
                f"({reason}): set data.image_size or choose another backbone.name"
            ) from error

    def head(self, in_features: int, num_outputs: int, *purpose: str | int) -> LinearHead:
        """Make a fresh head."""
        return self.device.place(LinearHead(in_features, num_outputs, self._draws(purpose)))

    def grown_head(
        self, head: LinearHead, in_features: int, num_classes: int, *purpose: str | int
    ) -> LinearHead:
        """Make a larger head that keeps the old block exactly."""
        return grown(head, in_features, num_classes, self._draws(purpose))

    def _draws(self, purpose: tuple[str | int, ...]) -> torch.Generator:
        return generator(self.settings.seeds.initialisation, "head", *purpose)


class Method(ABC, Generic[SettingsT]):
    """An algorithm that learns task after task.

    ``learn`` yields everything that costs or decides; between two yields nothing runs but what
    stands there. A method starts without a network: its first task builds it.
    """

    uses_memory: ClassVar[bool] = True
    """Whether exemplars of old classes are kept."""
    keeps_all_images: ClassVar[bool] = False
    """Whether every image is kept: the upper bound alone may."""

    def __init__(self, settings: SettingsT, workshop: Workshop, memory: ExemplarMemory) -> None:
        self.settings = settings
        self.workshop = workshop
        self.memory = memory
        self._network: ExpandableNetwork | None = None
        self._class_means: Tensor | None = None

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

    @abstractmethod
    def learn(self, task: Task) -> Steps[Outcome]:
        """Learn a task's images; yield every phase and sweep, return the outcome."""

    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, the primary one first: the one that is reported and exported."""
        if self._network is None:
            return {}
        backbones = list(self._network.backbones)
        classifiers = {"linear": Classifier(backbones, self._network.head)}
        means = self._class_means
        if means is not None:
            classifiers["nearest_mean"] = Classifier(
                backbones, lambda features: nearest_mean(features.float(), means)
            )
        return classifiers

    def first_task(self, task: Task) -> Steps[Outcome]:
        """Train one fresh backbone and head on the first task with cross-entropy."""
        self.network = self.fresh_network(task.num_classes, task.number)
        yield self.classification_phase("base", self.settings.base, task.data)
        return Outcome(verdict="base")

    def fresh_network(self, num_classes: int, task_number: int) -> ExpandableNetwork:
        """Make one fresh backbone with a fresh head."""
        backbone = self.workshop.backbone(task_number)
        head = self.workshop.head(backbone.feature_dim, num_classes, "main", task_number)
        return ExpandableNetwork([backbone], head)

    def classification_phase(
        self,
        name: str,
        recipe: Recipe,
        data: LabelledImages,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    ) -> Phase:
        """Train the single backbone and its head with ``loss`` of logits (B, K) and labels (B,)."""
        backbone, head = self.network.backbones[-1], self.network.head
        assert len(self.network.backbones) == 1

        def objective(batch: Batch) -> dict[str, Loss]:
            return {"classification": Loss(loss(head(batch.learned[0]), batch.labels))}

        return Phase(
            name=name,
            backbones=[backbone],
            heads=[head],
            objective=objective,
            recipe=recipe,
            data=data,
        )

    def refuse_without_new_class(self, task: Task) -> None:
        """Raise ValueError where a method has no rule for a task of known classes only."""
        if task.num_new_classes == 0:
            raise ValueError(
                f"task {task.number} has no new class and this method has no rule for that: "
                "add images of a new class, or use grace or replay"
            )

    def grow_head(self, task: Task) -> None:
        """Give the head the rows of a task's new classes; the backbones stay."""
        network = self.network
        head = self.workshop.grown_head(
            network.head, network.feature_dim, task.num_classes, "main", task.number
        )
        self.network = ExpandableNetwork(list(network.backbones), head)

    def with_exemplars(self, task: Task) -> LabelledImages:
        """The task's images followed by the exemplars: D̃_t."""
        return concatenate([task.data, self.memory.data()])

    def remember(self, task: Task) -> Steps[None]:
        """Update the exemplars and the class means with the present network (spec §1.9).

        Old classes keep their first exemplars. Each class of the task is herded from its images,
        those of a known class together with its stored ones.
        """
        if not self.memory.quota(task.num_classes):
            return
        yield from self._herd(task)
        exemplars = self.memory.data()
        features = yield self._features("class means", exemplars)
        means = [class_mean(features[exemplars.labels == index]) for index in self.memory.classes]
        self._class_means = torch.stack(means).to(self.workshop.device.torch_device)

    def _herd(self, task: Task) -> Steps[None]:
        quota = self.memory.quota(task.num_classes)
        exemplars = self.memory.data()
        stored = torch.isin(exemplars.labels, torch.tensor(task.present_classes))
        known = exemplars.subset(stored.nonzero().flatten())
        candidates = concatenate([known, task.data])
        features = yield self._features("herd", candidates)
        self.memory.reduce(quota)
        for index in task.present_classes:
            places = (candidates.labels == index).nonzero().flatten()
            order = herd(features[places], quota)
            self.memory.store(index, candidates.images.subset(places), order)

    def _features(self, name: str, data: LabelledImages) -> Sweep:
        return Sweep(
            name=name, backbones=list(self.network.backbones), data=data, reducer=Collect()
        )

    def keep(self, task: Task) -> None:
        """Put all images of a task into a memory that keeps everything."""
        data = concatenate([self.memory.data(), task.data])
        for index in task.present_classes:
            images = data.of_class(index).images
            self.memory.store(index, images, torch.arange(len(images)))
