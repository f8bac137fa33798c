"""Choice of the exemplars, class means of the exemplars, and class-balanced training sets.

Herding picks, one after another, the image that brings the mean feature of those picked closest to
the class's own mean (Rebuffi et al., "iCaRL", CVPR 2017, Algorithm 4; docs/protocols.md#herding).

Shapes: N images, D concatenated features, K classes.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from grace.base.randomness import generator
from grace.data.images import LabelledImages, concatenate, image_keys
from grace.data.memory import ExemplarMemory, class_mean, herd, nearest_mean
from grace.data.scenario import Task
from grace.engine.parts import frozen
from grace.engine.phase import Sweep
from grace.engine.reducers import Collect
from grace.methods.classifier import Classifier
from grace.methods.feature_cache import FeatureCache
from grace.methods.module_factory import Outline
from grace.methods.planning import Coming
from grace.methods.slots import TensorsSlot
from grace.methods.state import DeclaredState
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import MASKED


@final
class ClassMeans:
    """The class means of the exemplars, saved with the method: a classifier beside the head.

    Args:
        state: where the means are declared.
        device: where they are stored.
    """

    def __init__(self, state: DeclaredState, device: torch.device) -> None:
        self._device = device
        self._slot = state.add(
            TensorsSlot("class_means", _like_class_means, is_needed=False, has_class_rows=True)
        )

    def update(
        self, memory: ExemplarMemory, num_classes: int, network: ExpandableNetwork
    ) -> Generator[Sweep, Any, None]:
        """Compute the means (K, D) again with this network; a class without exemplars has 0.

        Args:
            memory: its exemplars are averaged.
            num_classes: K, rows of the means.
            network: gives the features.
        """
        exemplars = memory.data()
        found = yield from features("class means", exemplars, network)
        means = torch.zeros(num_classes, found.shape[1])
        for index in memory.classes:
            means[index] = class_mean(found[exemplars.labels == index])
        self._slot.value = {"means": means.to(self._device)}

    def classifier(self, backbones: Sequence[nn.Module]) -> Classifier | None:
        """Return the nearest-mean classifier; ``None`` before the first update.

        Classes without a mean get the score of a masked class.
        """
        if self._slot.value is None:
            return None
        means = self._slot.value["means"]
        absent = means.norm(dim=1) == 0
        return Classifier(
            backbones,
            lambda features: nearest_mean(features.float(), means).masked_fill(absent, MASKED),
        )


def features(
    name: str, data: LabelledImages, network: ExpandableNetwork, cache: FeatureCache | None = None
) -> Generator[Sweep, Any, Tensor]:
    """Yield a sweep over images with the test transform; return the network's features (N, D).

    Args:
        name: of the sweep.
        data: N images.
        network: its backbones' features are concatenated.
        cache: features known already, if the backbones never change; the sweep is over all other
            images, and there is none if all are known.
    """
    keys = [] if cache is None else image_keys(data.images)
    absent = torch.arange(len(data)) if cache is None else cache.missing(keys)
    if cache is None or len(absent):
        rest = data if len(absent) == len(data) else data.subset(absent)
        sweep = Sweep(name=name, parts=frozen(network.extractors), data=rest, reducer=Collect())
        found: Tensor = yield sweep
        if cache is None:
            return found
        cache.add([keys[i] for i in absent.tolist()], found)
    return cache.rows(keys)


def update_exemplars(
    memory: ExemplarMemory,
    task: Task,
    quota: int,
    network: ExpandableNetwork,
    cache: FeatureCache | None = None,
) -> Generator[Sweep, Any, None]:
    """Cut the exemplars of old classes to ``quota``, and herd those of the task's classes.

    A known class is herded from its stored and its new images together. Images that lose detail
    when they are stored are herded as they will be then: the means are those of what is kept.

    Args:
        memory: is changed.
        task: its images are candidates.
        quota: exemplars per class. With more, fewer classes are forgotten and phases last longer.
        network: its features are herded.
        cache: features known already; see ``features``.
    """
    exemplars = memory.data()
    stored = torch.isin(exemplars.labels, torch.tensor(task.present_classes))
    known = exemplars.subset(stored.nonzero().flatten())
    candidates, fresh = concatenate([known, task.data]), memory.as_stored(task.data)
    seen = candidates if fresh is task.data else concatenate([known, fresh])
    found = yield from features("herd", seen, network, cache)
    memory.reduce(quota)
    for index in task.present_classes:
        places = (candidates.labels == index).nonzero().flatten()
        memory.store(index, candidates.images.subset(places), herd(found[places], quota))


def balanced(
    memory: ExemplarMemory, task: Task, network: ExpandableNetwork | None, seed: int
) -> Generator[Sweep, Any, LabelledImages]:
    """Choose equally many images of every class: all exemplars, and as many of each new class.

    The number is that of the old class with the most exemplars; a class with fewer images gives
    all it has. Without exemplars every image is chosen.

    Args:
        memory: the exemplars, as the last task left them.
        task: images of its new classes are chosen.
        network: herds them by its features; ``None``: they are drawn uniformly.
        seed: of that draw.
    """
    count = memory.largest_class or len(task.data)
    chosen = []
    found = None
    if network is not None:
        found = yield from features("choose", task.data, network)
    for index in task.new_classes:
        places = (task.data.labels == index).nonzero().flatten()
        if found is not None:
            order = herd(found[places], count)
        else:
            draws = generator(seed, "balanced", task.number, index)
            order = torch.randperm(len(places), generator=draws)[:count]
        chosen.append(task.data.subset(places[order]))
    return concatenate([memory.data(), *chosen])


def balanced_size(memory: ExemplarMemory, coming: Coming) -> int:
    """Estimate how many images ``balanced`` chooses, exemplars included, in a coming task."""
    count = memory.largest_class
    chosen = min(coming.num_new * count, coming.num_images) if count else coming.num_images
    return coming.num_kept + chosen


def _like_class_means(network: Outline) -> Mapping[str, Tensor]:
    shape = (network.head.num_classes, network.feature_dim)
    return {"means": torch.empty(shape, device="meta")}
