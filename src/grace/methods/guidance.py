"""The modules of the task-agnostic network and its attention, and their parts (TagFex)."""

import torch

from grace.base.randomness import seeded_globally
from grace.data.scenario import Task
from grace.engine.phase import Part
from grace.methods.module_factory import ModuleFactory
from grace.nn.attention import MergeAttention, Pick, TaskAgnostic
from grace.nn.backbone import Backbone, WithMaps
from grace.nn.heads import Head, LinearHead
from grace.settings.methods import TagFexSettings


def with_map(name: str, backbone: Backbone) -> dict[str, Part]:
    """Name the parts of a trained backbone: ``name`` gives features, ``name.map`` the map."""
    both = f"{name}.both"
    return {
        both: Part(WithMaps(backbone)),
        name: Part(Pick(0), [both]),
        f"{name}.map": Part(Pick(1), [both]),
    }


def fresh_agnostic(factory: ModuleFactory, settings: TagFexSettings, purpose: str) -> TaskAgnostic:
    """Make a task-agnostic network, in eval mode without gradients.

    Args:
        factory: makes its backbone.
        settings: widths of the projector.
        purpose: seeds the draws of the backbone.
    """
    with seeded_globally(factory.settings.seeds.initialisation, "agnostic"):
        made = TaskAgnostic(
            factory.backbone(purpose), settings.projector_width, settings.embedding_width
        )
    return factory.device.place(made).eval().requires_grad_(False)


def sketched_agnostic(factory: ModuleFactory, settings: TagFexSettings) -> TaskAgnostic:
    """Make a task-agnostic network on the meta device: names and shapes without memory."""
    with torch.device("meta"):
        return TaskAgnostic(factory.sketch, settings.projector_width, settings.embedding_width)


def fresh_attention(
    factory: ModuleFactory, settings: TagFexSettings, backbone: Backbone, number: int
) -> MergeAttention:
    """Make the attention of one task over the last maps of two backbones.

    Args:
        factory: gives seed and device.
        settings: number of heads.
        backbone: of the architecture of both.
        number: of the task, seeds the draws.
    """
    with seeded_globally(factory.settings.seeds.initialisation, "attention", number):
        made = MergeAttention(backbone.map_channels[-1], settings.attention_heads)
    return factory.device.place(made)


def grown_head(
    factory: ModuleFactory, settings: TagFexSettings, old: Head, new: Backbone, task: Task
) -> Head:
    """Add a task's rows and the new backbone's columns to the head.

    Args:
        factory: makes the head.
        settings: say how the old classes' weights for new features start.
        old: head to grow.
        new: the backbone.
        task: its new classes.
    """
    width = old.in_features + new.feature_dim
    head = factory.grown_head(old, width, task.num_classes, "main", task.number)
    if settings.old_rows == "zero":
        assert isinstance(head, LinearHead)
        with torch.no_grad():
            head.weight[: old.num_classes, old.in_features :] = 0
    return head
