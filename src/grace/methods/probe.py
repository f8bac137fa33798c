"""Probe: a frozen, pre-trained backbone; only a head learns, from features computed once.

Algorithm. 1. The backbone comes from its weights and never changes. 2. Every image passes it once.
3. ``head: linear``: grow the head, and train it on the features of new images and exemplars, over
all classes. ``nearest_mean``: nothing trains; the class with the nearest mean feature (cosine) is
predicted. 4. Herd exemplars by their features.

Two heads of the literature on frozen backbones, with these departures:

1. ``linear`` is multinomial logistic regression. It trains on the features of new images and
   exemplars together, over all classes, where the sequential probe of the prompt papers trains on
   new images and their classes alone, and forgets.
2. Images are not augmented: every image passes the backbone once, with the test transform.
3. ``class_prior`` is balanced by default: new classes have many images, old ones a few exemplars.
4. ``nearest_mean`` is SimpleCIL's prototype classifier (Zhou et al., arXiv 2303.07338): the plain
   mean of the raw features of all images of a class, compared by the cosine. Scores are
   ``2·cos − 2``, minus the squared distance of the two directions. Sum and number of the features
   are saved, so that more images of a known class go on with its mean.
5. Features are rounded to half precision, so that remembered ones equal computed ones.

Expect updates of seconds, and no forgetting by features that move. Weights of ImageNet flatter the
accuracy on ImageNet's own classes; on images unlike those of the pre-training it may be far worse.

Source: Zhou, Cai, Ye, Zhan, Liu, arXiv:2303.07338 (the nearest mean); Menon et al., *Long-Tail
Learning via Logit Adjustment*, ICLR 2021 (the prior).

Shapes: N images, D features, K classes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.data.memory import ExemplarMemory, nearest_mean
from grace.data.scenario import Task
from grace.engine.phase import Part, Phase
from grace.methods.classification import plain_objective
from grace.methods.herding import features
from grace.methods.method import Classifier, Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory, Outline
from grace.methods.planning import Coming, PlannedPhase
from grace.methods.slots import TensorsSlot
from grace.nn.heads import MASKED
from grace.settings.method import AnyMethodSettings, Traits
from grace.settings.recipe import Recipe


@final
class Probe(Method):
    """One backbone that never changes, the sums of its features by class, and a head."""

    traits = Traits(learns_known_classes=True, trains_backbone=False)

    variants = {"mean": {"head": "nearest_mean"}}

    class Settings(AnyMethodSettings):
        needs = (("update|class_prior", "head", "linear"),)

        head: Literal["linear", "nearest_mean"] = "linear"
        """linear: logistic regression on the features of new images and exemplars; nearest_mean:
        the nearest of the classes' mean features, which needs no exemplars and depends neither on
        the order of the classes nor on the updates"""
        update: Recipe = Recipe(
            epochs=60,
            batch_size=64,
            lr=0.001,
            optimiser="adamw",
            weight_decay=0.3,
            schedule="cosine",
        )
        """recipe of the linear head, in every task"""
        class_prior: Literal["none", "balanced"] = "balanced"
        """none: plain cross-entropy, by which classes of few images are predicted rarely; balanced:
        in training, the logits get + log of the class's share of the images, so that predictions
        favour no class"""

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
        super().__init__(settings, factory, memory)
        self.sums = self.state.add(TensorsSlot("feature_sums", _like_sums, has_class_rows=True))

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        self.network = self.fresh_network(task)
        yield from self._learn_head(task)
        return Outcome(verdict="start")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        self.grow_head(task)
        yield from self._learn_head(task)
        return Outcome(verdict="train", reason="probe keeps its backbone as it is")

    def _learn_head(self, task: Task) -> Steps[None]:
        data = self.with_exemplars(task)
        found = yield from features("features", data, self.network, self.features)
        num_new = len(task.data)
        self._add_to_sums(found[:num_new], task.data.labels, task.num_classes)
        if self.settings.head == "nearest_mean":
            self.network.eval().requires_grad_(False)
            return
        yield Phase(
            name="head",
            parts={"head": Part(self.network.head, ["features"])},
            objective=plain_objective(self.settings, self.factory, task, data),
            recipe=self.settings.update,
            data=data,
            rows={"features": found},
        )

    def _add_to_sums(self, found: Tensor, labels: Tensor, num_classes: int) -> None:
        """Add features (N, D) to the sums of their classes, and count them."""
        old = self.sums.value or {}
        device = self.factory.device.torch_device
        sums = torch.zeros(num_classes, found.shape[1], dtype=torch.float64)
        counts = torch.zeros(num_classes, dtype=torch.int64)
        if old:
            sums[: len(old["sums"])], counts[: len(old["counts"])] = old["sums"], old["counts"]
        sums.index_add_(0, labels, found.double())
        counts += torch.bincount(labels, minlength=num_classes)
        self.sums.value = {"sums": sums.to(device), "counts": counts.to(device)}

    @override
    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, that of ``head`` first; the other head learns nothing."""
        network = self.state.network.value
        if network is None or self.sums.value is None:
            return {}
        nearest = _nearest(network.extractors, self.sums.value)
        if self.settings.head == "nearest_mean":
            return {"nearest_mean": nearest}
        return {"linear": Classifier(network.extractors, network.head), "nearest_mean": nearest}

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        """Plan one pass over the new images; a step of the head costs next to nothing."""
        return [
            PlannedPhase(
                name="features", epochs=1, num_images=coming.num_images, trained=0, frozen=1
            )
        ]


def _nearest(backbones: Sequence[nn.Module], sums: Mapping[str, Tensor]) -> Classifier:
    absent = sums["counts"] == 0
    means = nn.functional.normalize(sums["sums"], dim=1).float()
    return Classifier(
        backbones, lambda found: nearest_mean(found.float(), means).masked_fill(absent, MASKED)
    )


def _like_sums(network: Outline) -> Mapping[str, Tensor]:
    shape = (network.head.num_classes, network.feature_dim)
    return {
        "sums": torch.empty(shape, dtype=torch.float64, device="meta"),
        "counts": torch.empty(shape[0], dtype=torch.int64, device="meta"),
    }
