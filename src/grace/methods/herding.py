"""Which images are kept of each class, and the class means that they give.

Herding picks, one after another, the image that brings the mean feature of those picked closest to
the class's own mean (Rebuffi et al., "iCaRL", CVPR 2017, Algorithm 4).

Shapes: N images, D concatenated features, K classes.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from grace.data.images import LabelledImages
from grace.data.joined import concatenate
from grace.data.memory import ExemplarMemory, class_mean, herd
from grace.data.scenario import Task
from grace.engine.parts import frozen
from grace.engine.phase import Sweep
from grace.engine.reducers import Collect
from grace.networks.expandable import ExpandableNetwork
from grace.randomness import generator


def features(
    name: str, data: LabelledImages, network: ExpandableNetwork
) -> Generator[Sweep, Any, Tensor]:
    """Ask for a network's features (N, D) of images, through the test transform."""
    sweep = Sweep(name=name, parts=frozen(network.extractors), data=data, reducer=Collect())
    found: Tensor = yield sweep
    return found


def update_exemplars(
    memory: ExemplarMemory, task: Task, quota: int, network: ExpandableNetwork
) -> Generator[Sweep, Any, None]:
    """Cut the exemplars of old classes to ``quota``, and herd those of the task's classes.

    A known class is herded from its stored and its new images together.
    """
    exemplars = memory.data()
    stored = torch.isin(exemplars.labels, torch.tensor(task.present_classes))
    known = exemplars.subset(stored.nonzero().flatten())
    candidates = concatenate([known, task.data])
    found = yield from features("herd", candidates, network)
    memory.reduce(quota)
    for index in task.present_classes:
        places = (candidates.labels == index).nonzero().flatten()
        memory.store(index, candidates.images.subset(places), herd(found[places], quota))


def class_means(
    memory: ExemplarMemory, num_classes: int, network: ExpandableNetwork
) -> Generator[Sweep, Any, Tensor]:
    """Give the mean (K, D) of every class's exemplars; 0 of a class without any."""
    exemplars = memory.data()
    found = yield from features("class means", exemplars, network)
    means = torch.zeros(num_classes, found.shape[1])
    for index in memory.classes:
        means[index] = class_mean(found[exemplars.labels == index])
    return means


def balanced(
    memory: ExemplarMemory, task: Task, network: ExpandableNetwork | None, seed: int
) -> Generator[Sweep, Any, LabelledImages]:
    """Choose equally many images of every class: the exemplars, and as many of each new class.

    The number is that of the stored exemplars of the old class that has most; classes with fewer
    images give all they have.

    Args:
        memory: as the last task left it.
        task: of which images are chosen.
        network: herds them by its features; none draws them uniformly.
        seed: of that draw.
    """
    exemplars = memory.data()
    quota = max((len(memory.of_class(index)) for index in memory.classes), default=len(task.data))
    chosen = []
    found = None
    if network is not None:
        found = yield from features("choose", task.data, network)
    for index in task.new_classes:
        places = (task.data.labels == index).nonzero().flatten()
        if found is not None:
            order = herd(found[places], quota)
        else:
            draws = generator(seed, "balanced", task.number, index)
            order = torch.randperm(len(places), generator=draws)[:quota]
        chosen.append(task.data.subset(places[order]))
    return concatenate([exemplars, *chosen])
