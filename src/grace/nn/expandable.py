"""The network that grows: backbones in order, and one head over their concatenated features.

The backbones may share a trunk; they are its branches then. Copies for inference have batch norm
folded into the convolutions.

Shapes: B images, C channels, H×W pixels, D = Σ feature_dim features, K classes.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast, final

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
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
        self.backbones = cast("Sequence[Backbone]", nn.ModuleList(backbones))
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


def folded(module: nn.Module) -> nn.Module:
    """Make a frozen copy in eval mode whose batch norms are folded into their convolutions.

    In eval mode ``bn(conv(x)) = (g/s)·W∗x + (c − m)·g/s + h`` (running mean m and deviation s,
    scale g and shift h, convolution bias c), which is one convolution. Parts that cannot be
    traced or folded stay as they are, so every copy gives the same outputs up to rounding. The copy
    is for inference: do not put it into train mode.

    Args:
        module: any module; left as it is.

    Returns:
        A copy without gradients, on the same device.
    """
    frozen = copy_of(module).eval().requires_grad_(False)
    for conv_path, norm_path in _conv_norm_pairs(frozen):
        conv, norm = frozen.get_submodule(conv_path), frozen.get_submodule(norm_path)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        _replace(frozen, conv_path, fuse_conv_bn_eval(conv, norm))
        _replace(frozen, norm_path, nn.Identity())
    return frozen.eval().requires_grad_(False)


def _conv_norm_pairs(module: nn.Module) -> list[tuple[str, str]]:
    """Find each convolution whose only reader is one batch norm; return both paths.

    The graph is traced only to see what feeds what. The copy keeps its classes, so that all
    backbones of one architecture share one compiled program.
    """
    try:
        # Only the graph: a traced module would leave its source text behind for good.
        nodes = fx.Tracer().trace(module).nodes
    except Exception:
        return []
    parts = dict(module.named_modules())
    # A module called twice, or under two names, cannot take in a batch norm that follows only one
    # of its calls.
    uses = Counter(str(node.target) for node in nodes if node.op == "call_module")
    names = Counter(id(part) for _, part in module.named_modules(remove_duplicate=False))
    single = {path for path in uses if uses[path] == 1 and names[id(parts[path])] == 1}
    pairs = []
    for node in nodes:
        source = node.args[0] if len(node.args) == 1 else None
        if not isinstance(source, fx.Node) or len(source.users) != 1:
            continue
        conv_path, norm_path = str(source.target), str(node.target)
        if node.op != "call_module" or not {conv_path, norm_path} <= single:
            continue
        norm = parts[norm_path]
        # Subclasses (timm's batch norm with activation) do more than normalise.
        if type(parts[conv_path]) is nn.Conv2d and type(norm) is nn.BatchNorm2d:
            pairs += [(conv_path, norm_path)] if norm.track_running_stats else []
    return pairs


def _replace(module: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, part)
