"""Where a method's fresh modules come from: on the device, seeded by what they are for."""

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from grace.configs.experiment import ExperimentSettings
from grace.engine.device import Device
from grace.networks.backbone import Backbone
from grace.networks.branching import split
from grace.networks.build import build_backbone, without_weights
from grace.networks.heads import LinearHead, grown
from grace.randomness import generator
from grace.storage.memory import refuse_too_large

_NUMBERS_DO_NOT_MATTER = ("restored", "trial", "measured")
"""Purposes for which a backbone's numbers are overwritten or only counted: no file of weights is
needed for them, so that a saved learner, which holds its own, can be loaded without that file."""


@final
@dataclass(frozen=True)
class Workshop:
    """Makes fresh modules, on the device, seeded by what they are for."""

    settings: ExperimentSettings
    num_channels: int
    device: Device

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

    def refuse_unfit_backbone(
        self,
        shape: tuple[int, int, int],
        probe: nn.Module | None = None,
        *,
        shares_trunk: bool = False,
    ) -> None:
        """Try a backbone on one image of shape (C, H, W).

        Args:
            shape: of the images.
            probe: one that is there, images → features; none makes a fresh one, unless it is too
                large.
            shares_trunk: whether the fresh one is cut before its last stage.

        Raises:
            ValueError: when there is no such backbone, it takes more than half of the machine's
                memory, it cannot be cut, or it cannot take such images.
        """
        if probe is None:
            num_bytes = sum(tensor.nbytes for tensor in self.sketch().state_dict().values())
            refuse_too_large(num_bytes, f"backbone {self.settings.backbone.name}")
            backbone = self.backbone("probe")
            probe = nn.Sequential(*split(backbone)) if shares_trunk else backbone
        try:
            with torch.no_grad():
                probe(torch.zeros(1, *shape, device=self.device.torch_device))
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
