"""The factory of a method's fresh modules: on the device, seeded by their purpose.

Shapes: D features of all backbones together, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, final

import torch
from torch import Tensor, nn

from grace.base.errors import GraceError
from grace.base.machine import refuse_too_large
from grace.base.randomness import generator
from grace.base.words import in_one_line
from grace.engine.device import Device
from grace.methods.preprocessing import input_shape
from grace.nn.backbone import Backbone
from grace.nn.branching import split
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import Head, LinearHead
from grace.nn.weights import build_backbone, without_weights
from grace.settings.experiment import ExperimentSettings

HeadT = TypeVar("HeadT", bound=Head)
MakeHead = Callable[[int, int, torch.Generator | None], Head]
"""Makes a head from the width of its features, the number of classes and the draws of its weights;
without draws, only its shapes are right."""

_NUMBERS_DO_NOT_MATTER = ("restored", "trial")
"""Purposes for which a backbone's numbers are overwritten or only counted. No file of pre-trained
weights is read for them, so that a saved learner can be loaded without that file."""


@final
@dataclass(frozen=True)
class Outline:
    """The form of a network: names and shapes of its tensors, on the meta device, without memory.

    Args:
        trunk: shared by all backbones; ``None`` if they share nothing.
        backbone: form of each backbone.
        num_backbones: number of backbones.
        head: over all of them.
        make_head: makes a head of another width.
    """

    trunk: nn.Module | None
    backbone: Backbone
    num_backbones: int
    head: Head
    make_head: MakeHead

    def __deepcopy__(self, memo: dict[int, object]) -> "Outline":
        """Return itself: nothing changes it, and a copy takes a third of the time of a load."""
        return self

    @property
    def feature_dim(self) -> int:
        """Width D of the concatenated features."""
        return self.head.in_features

    def with_more(self, num_more: int) -> "Outline":
        """Return the form of the network with more backbones."""
        count = self.num_backbones + num_more
        with torch.device("meta"):
            head = self.make_head(count * self.backbone.feature_dim, self.head.num_classes, None)
        return replace(self, num_backbones=count, head=head)

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Return meta tensors of all shapes, named as ``ExpandableNetwork.parts`` does."""
        parts: dict[str, Mapping[str, Tensor]] = {}
        if self.trunk is not None:
            parts["trunk"] = self.trunk.state_dict()
        backbone = self.backbone.state_dict()
        parts |= {f"backbone.{i}": backbone for i in range(self.num_backbones)}
        return parts | {"head": self.head.state_dict()}


@final
@dataclass(frozen=True)
class ModuleFactory:
    """Makes fresh modules on the device, seeded by their purpose.

    Args:
        settings: of the experiment.
        num_channels: channels C of the images.
        device: where modules are made.
        make_head: makes the head of the method's networks.
    """

    settings: ExperimentSettings
    num_channels: int
    device: Device
    make_head: MakeHead = LinearHead

    def backbone(self, *purpose: str | int) -> Backbone:
        """Build a fresh backbone in eval mode without gradients.

        It starts from the weights that the settings name, unless its numbers do not matter.
        """
        seed, settings = self.settings.seeds.initialisation, self.settings.backbone
        if purpose[0] in _NUMBERS_DO_NOT_MATTER:
            settings = without_weights(settings)
        backbone = build_backbone(settings, self.num_channels, seed, "backbone", *purpose)
        return self.device.place(backbone).eval().requires_grad_(False)

    @cached_property
    def sketch(self) -> Backbone:
        """A backbone on the meta device, in eval mode: shapes without memory or numbers."""
        with torch.device("meta"):
            settings = without_weights(self.settings.backbone)
            backbone = build_backbone(settings, self.num_channels, 0, "sketch")
            return backbone.to("meta").eval().requires_grad_(False)

    def outline(self, num_backbones: int, num_classes: int) -> Outline:
        """Return the form of a network of the method, on the meta device."""
        trunk, backbone = self._cut(self.sketch)
        with torch.device("meta"):
            head = self.make_head(num_backbones * backbone.feature_dim, num_classes, None)
        return Outline(trunk, backbone, num_backbones, head, self.make_head)

    def network(self, num_backbones: int, num_classes: int) -> ExpandableNetwork:
        """Make a network to load weights into, in eval mode without gradients."""
        trunk: nn.Module | None = None
        backbones: list[Backbone] = []
        for _ in range(num_backbones):
            trunk, backbone = self._cut(self.backbone("restored"))
            backbones.append(backbone)
        width = sum(backbone.feature_dim for backbone in backbones)
        head = self.head(width, num_classes, "restored")
        return ExpandableNetwork(backbones, head, trunk).eval().requires_grad_(False)

    @property
    def freezes_trunk(self) -> bool:
        """True if the backbones share a trunk that never changes."""
        return self.settings.backbone.train == "last-stages"

    def branch(self, *purpose: str | int) -> Backbone:
        """Build a fresh backbone as ``backbone`` does, without the trunk if there is one."""
        return self._cut(self.backbone(*purpose))[1]

    def _cut(self, backbone: Backbone) -> tuple[nn.Module | None, Backbone]:
        """Split a backbone into trunk and branch, if the backbones share a trunk."""
        if self.freezes_trunk:
            return split(backbone, -self.settings.backbone.last_stages)
        return split(backbone) if self.settings.method.traits.shares_trunk else (None, backbone)

    def first_network(
        self, num_classes: int, backbone: Backbone, *purpose: str | int
    ) -> ExpandableNetwork:
        """Make a network of one backbone and a fresh head.

        Args:
            num_classes: K.
            backbone: cut if the method's backbones share a trunk.
            purpose: seeds the draws of the head.
        """
        trunk, branch = self._cut(backbone)
        head = self.head(branch.feature_dim, num_classes, *purpose)
        return ExpandableNetwork([branch], head, trunk)

    def refuse_unfit_backbone(
        self, shape: tuple[int, int, int], probe: nn.Module | None = None
    ) -> None:
        """Try a backbone on one image of shape (C, H, W).

        Args:
            shape: of the images.
            probe: the backbone, images → features; ``None``: a fresh one, if it is not too large.

        Raises:
            GraceError: if there is no such backbone, it needs more than half of the machine's
                memory, it cannot be cut, or it cannot take such images.
        """
        if probe is None:
            num_bytes = sum(tensor.nbytes for tensor in self.sketch.state_dict().values())
            refuse_too_large(num_bytes, f"backbone {self.settings.backbone.name}")
            trunk, backbone = self._cut(self.backbone("probe"))
            probe = backbone if trunk is None else nn.Sequential(trunk, backbone)
        try:
            shape = input_shape(self.settings.backbone, shape)
            with torch.no_grad():
                probe(torch.zeros(1, *shape, device=self.device.torch_device))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, AssertionError) as error:
            raise GraceError(
                f"backbone {self.settings.backbone.name} cannot take images of shape {shape} "
                f"({in_one_line(error)})",
                "choose another backbone, or set data.image_size",
            ) from error

    def head(self, in_features: int, num_classes: int, *purpose: str | int) -> Head:
        """Make a fresh head of the method's own kind.

        Args:
            in_features: width D of the features.
            num_classes: K.
            purpose: seeds the draws.
        """
        return self.device.place(self.make_head(in_features, num_classes, self._draws(purpose)))

    def linear(self, in_features: int, num_outputs: int, *purpose: str | int) -> LinearHead:
        """Make a fresh linear layer for training only: an auxiliary head, a projection.

        Args:
            in_features: width of its input.
            num_outputs: its outputs.
            purpose: seeds the draws.
        """
        return self.device.place(LinearHead(in_features, num_outputs, self._draws(purpose)))

    def grown_head(
        self, head: HeadT, in_features: int, num_classes: int, *purpose: str | int
    ) -> HeadT:
        """Make a larger head that keeps the old one's weights.

        Args:
            head: the old one; not changed.
            in_features: total width D, at least the old one's.
            num_classes: K, at least the old one's.
            purpose: seeds the draws.
        """
        return head.grown(in_features, num_classes, self._draws(purpose))

    def _draws(self, purpose: tuple[str | int, ...]) -> torch.Generator:
        return generator(self.settings.seeds.initialisation, "head", *purpose)
