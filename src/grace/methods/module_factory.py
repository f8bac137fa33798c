"""Where a method's fresh modules come from: on the device, seeded by what they are for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, final

import torch
from torch import Tensor, nn

from grace.configs.experiment import ExperimentSettings
from grace.engine.device import Device
from grace.networks.backbone import Backbone
from grace.networks.branching import split
from grace.networks.build import build_backbone, without_weights
from grace.networks.expandable import ExpandableNetwork
from grace.networks.heads import Head, LinearHead
from grace.randomness import generator
from grace.storage.memory import refuse_too_large
from grace.text.escaping import first_line
from grace.text.refusals import GraceError

HeadT = TypeVar("HeadT", bound=Head)
MakeHead = Callable[[int, int, torch.Generator | None], Head]
"""Makes the head of a network from the width of its features, the number of classes, and the draws
of its weights; without draws it only has shapes."""

_NUMBERS_DO_NOT_MATTER = ("restored", "trial")
"""Purposes for which a backbone's numbers are overwritten or only counted: no file of weights is
needed for them, so that a saved learner, which holds its own, can be loaded without that file."""


@final
@dataclass(frozen=True)
class Outline:
    """The form of a network on the meta device: names and shapes of its tensors, no memory.

    Args:
        trunk: what the backbones share, if they share anything.
        backbone: any of them; they have one form.
        num_backbones: how many there are.
        head: over all of them.
        make_head: makes a head of another form.
    """

    trunk: nn.Module | None
    backbone: Backbone
    num_backbones: int
    head: Head
    make_head: MakeHead

    @property
    def feature_dim(self) -> int:
        """Width D of the concatenated features."""
        return self.head.in_features

    def with_more(self, num_more: int) -> "Outline":
        """Sketch the network with some backbones more."""
        count = self.num_backbones + num_more
        with torch.device("meta"):
            head = self.make_head(count * self.backbone.feature_dim, self.head.num_classes, None)
        return replace(self, num_backbones=count, head=head)

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Name the tensors as ``ExpandableNetwork.parts`` does."""
        parts: dict[str, Mapping[str, Tensor]] = {}
        if self.trunk is not None:
            parts["trunk"] = self.trunk.state_dict()
        backbone = self.backbone.state_dict()
        parts |= {f"backbone.{i}": backbone for i in range(self.num_backbones)}
        return parts | {"head": self.head.state_dict()}


@final
@dataclass(frozen=True)
class ModuleFactory:
    """Makes fresh modules, on the device, seeded by what they are for.

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

        It starts from the weights that the settings name, unless nobody looks at its numbers.
        """
        seed, settings = self.settings.seeds.initialisation, self.settings.backbone
        if purpose[0] in _NUMBERS_DO_NOT_MATTER:
            settings = without_weights(settings)
        backbone = build_backbone(settings, self.num_channels, seed, "backbone", *purpose)
        return self.device.place(backbone).eval().requires_grad_(False)

    def sketch(self) -> Backbone:
        """Build a backbone of the meta device, in eval mode: shapes without memory or numbers."""
        with torch.device("meta"):
            settings = without_weights(self.settings.backbone)
            backbone = build_backbone(settings, self.num_channels, 0, "sketch")
            return backbone.to("meta").eval().requires_grad_(False)

    def outline(self, num_backbones: int, num_classes: int) -> Outline:
        """Sketch a network of the method, without memory for any tensor."""
        trunk, backbone = self._cut(self.sketch())
        with torch.device("meta"):
            head = self.make_head(num_backbones * backbone.feature_dim, num_classes, None)
        return Outline(trunk, backbone, num_backbones, head, self.make_head)

    def network(self, num_backbones: int, num_classes: int) -> ExpandableNetwork:
        """Make a network whose weights are about to be loaded, in eval mode without gradients."""
        trunk: nn.Module | None = None
        backbones: list[Backbone] = []
        for _ in range(num_backbones):
            trunk, backbone = self._cut(self.backbone("restored"))
            backbones.append(backbone)
        width = sum(backbone.feature_dim for backbone in backbones)
        head = self.head(width, num_classes, "restored")
        return ExpandableNetwork(backbones, head, trunk).eval().requires_grad_(False)

    def _cut(self, backbone: Backbone) -> tuple[nn.Module | None, Backbone]:
        """Part the trunk from the backbone, where the method's backbones share one."""
        return split(backbone) if self.settings.method.traits.shares_trunk else (None, backbone)

    def first_network(
        self, num_classes: int, backbone: Backbone, *purpose: str | int
    ) -> ExpandableNetwork:
        """Make a network of one backbone and a fresh head."""
        trunk, branch = self._cut(backbone)
        head = self.head(branch.feature_dim, num_classes, *purpose)
        return ExpandableNetwork([branch], head, trunk)

    def refuse_unfit_backbone(
        self, shape: tuple[int, int, int], probe: nn.Module | None = None
    ) -> None:
        """Try a backbone on one image of shape (C, H, W).

        Args:
            shape: of the images.
            probe: one that is there, images → features; none makes a fresh one, unless it is too
                large.

        Raises:
            ValueError: when there is no such backbone, it takes more than half of the machine's
                memory, it cannot be cut, or it cannot take such images.
        """
        if probe is None:
            num_bytes = sum(tensor.nbytes for tensor in self.sketch().state_dict().values())
            refuse_too_large(num_bytes, f"backbone {self.settings.backbone.name}")
            trunk, backbone = self._cut(self.backbone("probe"))
            probe = backbone if trunk is None else nn.Sequential(trunk, backbone)
        try:
            with torch.no_grad():
                probe(torch.zeros(1, *shape, device=self.device.torch_device))
        except (RuntimeError, AssertionError) as error:
            raise GraceError(
                f"backbone {self.settings.backbone.name} cannot take images of shape {shape} "
                f"({first_line(error)})",
                "set data.image_size or choose another backbone.name",
            ) from error

    def head(self, in_features: int, num_classes: int, *purpose: str | int) -> Head:
        """Make a fresh head of the method's own kind."""
        return self.device.place(self.make_head(in_features, num_classes, self._draws(purpose)))

    def linear(self, in_features: int, num_outputs: int, *purpose: str | int) -> LinearHead:
        """Make a fresh linear layer for training alone: an auxiliary head, a projection."""
        return self.device.place(LinearHead(in_features, num_outputs, self._draws(purpose)))

    def grown_head(
        self, head: HeadT, in_features: int, num_classes: int, *purpose: str | int
    ) -> HeadT:
        """Make a larger head that keeps what the old one has learnt."""
        return head.grown(in_features, num_classes, self._draws(purpose))

    def _draws(self, purpose: tuple[str | int, ...]) -> torch.Generator:
        return generator(self.settings.seeds.initialisation, "head", *purpose)
