"""The network that grows: backbones in order, and one head over their concatenated features.

The backbones may share a trunk; they are its branches then.

Shapes: B images, C channels, H×W pixels, D = Σ feature_dim features, K classes.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast, final, overload

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.nn.backbone import Backbone
from grace.nn.branching import Fork
from grace.nn.heads import Head

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@final
@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters; the paper's #P is ``backbones``."""

    backbones: int
    heads: int

    @property
    def total(self) -> int:
        """Backbones and heads together."""
        return self.backbones + self.heads


@final
class BackboneList(nn.ModuleList):
    """A ``ModuleList`` whose members are known to be backbones."""

    def __init__(self, backbones: Iterable[Backbone]) -> None:
        super().__init__(backbones)

    @override
    def __iter__(self) -> Iterator[Backbone]:
        return cast("Iterator[Backbone]", super().__iter__())

    @overload
    def __getitem__(self, idx: slice) -> "BackboneList": ...

    @overload
    def __getitem__(self, idx: int) -> Backbone: ...

    @override
    def __getitem__(self, idx: int | slice) -> "Backbone | BackboneList":
        return cast("Backbone | BackboneList", super().__getitem__(idx))


@final
class ExpandableNetwork(nn.Module):
    """``f(x) = W [φ₁(x), …, φ_b(x)] + bias`` (paper Eq. 1); backbones may differ in width.

    Args:
        backbones: at least one, in the order of the head's columns; with a trunk, its branches.
        head: a head over the sum of their widths.
        trunk: maps images to the input of all backbones; ``None``: they read the images.
    """

    def __init__(
        self, backbones: Sequence[Backbone], head: Head, trunk: nn.Module | None = None
    ) -> None:
        super().__init__()
        assert backbones
        assert head.in_features == sum(backbone.feature_dim for backbone in backbones)
        self.trunk = trunk
        self.backbones = BackboneList(backbones)
        self.head = head
        self.extractors: tuple[nn.Module, ...] = (
            tuple(backbones) if trunk is None else (Fork(trunk, backbones),)
        )
        """Modules from images to features, to be concatenated: the backbones or, with a trunk, one
        module for all of them, so that the trunk is computed once."""

    @property
    def backbone(self) -> Backbone:
        """The only backbone of a network."""
        (backbone,) = self.backbones
        return backbone

    @property
    def feature_dim(self) -> int:
        """Width D of the concatenated features."""
        return self.head.in_features

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the concatenated features (B, D)."""
        return torch.cat([extractor(images) for extractor in self.extractors], dim=1)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to logits (B, K)."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Return all tensors, of any shape, in groups: trunk, each backbone, head."""
        return {name: module.state_dict() for name, module in self.modules_by_part().items()}

    def modules_by_part(self) -> dict[str, nn.Module]:
        """Return the modules of the groups in ``parts``, by the same names."""
        trunk: dict[str, nn.Module] = {} if self.trunk is None else {"trunk": self.trunk}
        backbones = {f"backbone.{i}": backbone for i, backbone in enumerate(self.backbones)}
        return {**trunk, **backbones, "head": self.head}

    def num_parameters(self) -> ParameterCounts:
        """Count the parameters, frozen ones too; the trunk's belong to the backbones."""
        heads = _num_parameters(self.head)
        return ParameterCounts(_num_parameters(self) - heads, heads)

    def num_bytes(self) -> int:
        """Count the bytes of weights and buffers: everything that predictions need."""
        return sum(tensor.nbytes for tensor in self.state_dict().values())


def copy_of(module: ModuleT) -> ModuleT:
    """Copy a module with weights, buffers and flags, but without gradients."""
    clone = copy.deepcopy(module)
    clone.zero_grad(set_to_none=True)
    return clone


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
