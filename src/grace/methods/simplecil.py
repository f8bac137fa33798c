"""SimpleCIL: a frozen, pre-trained backbone; each class is the mean of its features.

Algorithm. 1. Every image of a task passes the backbone once, with the test transform. 2. The weight
of a class is the plain mean of the raw features of all its images. 3. An image belongs to the class
with the highest cosine. Nothing is trained and no image is stored.

Departures. 1. Sum and number of the features are saved, so that more images of a known class go on
with its mean. 2. Features are rounded to half precision, as in all methods with a frozen backbone.

Expect the same accuracy for any order of the classes and any division into tasks. With a random
backbone it is poor: give ``backbone.weights``.

Source: Zhou et al., arXiv:2303.07338.
"""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.methods.herding import features
from grace.methods.method import Classifier, Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory, Outline
from grace.methods.planning import Coming, PlannedPhase
from grace.methods.slots import TensorsSlot
from grace.nn.heads import MASKED
from grace.settings.method import AnyMethodSettings, Traits


@final
class SimpleCIL(Method):
    """One backbone that never changes; its network's head is not used."""

    traits = Traits(memory="none", learns_known_classes=True, trains_backbone=False)

    class Settings(AnyMethodSettings):
        pass

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
        super().__init__(settings, factory, memory)
        self.prototypes = self.state.add(TensorsSlot("prototypes", _like, has_class_rows=True))

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        self.network = self.fresh_network(task).eval().requires_grad_(False)
        yield from self._add(task)
        return Outcome(verdict="start")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        self.grow_head(task)
        self.network.eval().requires_grad_(False)
        yield from self._add(task)
        return Outcome(verdict="train", reason="simplecil keeps its backbone as it is")

    def _add(self, task: Task) -> Steps[None]:
        """Add a task's features to the sums (K, D) and numbers (K,) of the classes."""
        found = yield from features("features", task.data, self.network, self.features)
        sums = torch.zeros(task.num_classes, found.shape[1], dtype=torch.float64)
        sums.index_add_(0, task.data.labels, found.double())
        numbers = torch.bincount(task.data.labels, minlength=task.num_classes)
        if (before := self.prototypes.value) is not None:
            num_old = len(before["numbers"])
            sums[:num_old] += before["sums"].cpu()
            numbers[:num_old] += before["numbers"].cpu()
        device = self.factory.device.torch_device
        self.prototypes.value = {"sums": sums.to(device), "numbers": numbers.to(device)}

    @override
    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictor: the cosine between features and the mean of each class."""
        own = self.prototypes.value
        if own is None:
            return {}
        absent, weights = own["numbers"] == 0, normalize(own["sums"], dim=1).float()

        def score(found: Tensor) -> Tensor:
            cosines = normalize(found.float(), dim=1) @ weights.T
            return cosines.masked_fill(absent, MASKED)

        return {"nearest_mean": Classifier(self.network.extractors, score)}

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        count = coming.num_images
        return [PlannedPhase(name="features", epochs=1, num_images=count, trained=0, frozen=1)]


def _like(network: Outline) -> Mapping[str, Tensor]:
    count, width = network.head.num_classes, network.feature_dim
    sums = torch.empty(count, width, dtype=torch.float64, device="meta")
    return {"sums": sums, "numbers": torch.empty(count, dtype=torch.int64, device="meta")}
