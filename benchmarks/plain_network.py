"""The network of the plain reference implementation, and the clock that times its parts.

Shapes: B images of H×W pixels, K classes, b backbones of d = 64 features.
"""

import copy
from collections.abc import Sequence
from time import perf_counter
from typing import cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override


@final
class Stopwatch:
    """Gives the time since the last lap to a named part, so that parts never overlap."""

    def __init__(self, device: torch.device) -> None:
        parts = ("data", "frozen", "training", "assess", "evaluation", "herding")
        self.seconds = dict.fromkeys(parts, 0.0)
        self.on_gpu = device.type == "cuda"
        self.last = perf_counter()

    def lap(self, part: str) -> None:
        """Add the time since the last lap to ``part``."""
        now = perf_counter()
        self.seconds[part] += now - self.last
        self.last = now

    def phase_end(self, part: str) -> None:
        """Wait for the device, then lap."""
        if self.on_gpu:
            torch.cuda.synchronize()
        self.lap(part)


@final
class Block(nn.Module):
    """Basic residual block with option-A shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.changes_shape = stride != 1 or in_channels != out_channels
        self.pool = nn.AvgPool2d(kernel_size=1, stride=stride)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Map (B, C_in, H, W) to (B, C_out, H/stride, W/stride)."""
        shortcut = inputs
        if self.changes_shape:
            pooled = self.pool(inputs)
            shortcut = torch.cat([pooled, torch.zeros_like(pooled)], dim=1)
        outputs = F.relu(self.bn1(self.conv1(inputs)))
        return F.relu(self.bn2(self.conv2(outputs)) + shortcut)


@final
class ResNet(nn.Module):
    """CIFAR ResNet without classifier: images (B, 3, H, W) to features (B, 64)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        layers: list[nn.Module] = []
        for in_channels, out_channels, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
            layers.append(Block(in_channels, out_channels, stride))
            layers += [Block(out_channels, out_channels, 1) for _ in range(blocks - 1)]
        self.layers = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] ** 2 * module.out_channels
                nn.init.normal_(module.weight, 0.0, (2.0 / fan_out) ** 0.5)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, 64)."""
        maps = self.layers(F.relu(self.bn(self.conv(images))))
        return F.adaptive_avg_pool2d(maps, 1).flatten(1)


def make_head(in_features: int, num_classes: int) -> nn.Linear:
    """Make a linear head with Kaiming-uniform weights (gain 1, fan-in) and zero biases."""
    head = nn.Linear(in_features, num_classes)
    nn.init.kaiming_uniform_(head.weight, nonlinearity="linear")
    nn.init.zeros_(head.bias)
    return head


@final
class Network(nn.Module):
    """Backbones side by side with one head over their concatenated features."""

    def __init__(self, backbones: Sequence[nn.Module], head: nn.Linear) -> None:
        super().__init__()
        self.backbones = nn.ModuleList(backbones)
        self.head = head

    def features(self, images: Tensor, watch: Stopwatch | None = None) -> list[Tensor]:
        """Map images (B, 3, H, W) to b features (B, d); a watch times all but the last."""
        if watch is not None:
            watch.lap("training")
        features = [backbone(images) for backbone in self.backbones[:-1]]
        if watch is not None:
            watch.lap("frozen")
        return [*features, self.backbones[-1](images)]

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to logits (B, K)."""
        return self.logits(self.features(images))

    def logits(self, features: Sequence[Tensor]) -> Tensor:
        """Map the backbones' features to logits (B, K)."""
        return cast("Tensor", self.head(torch.cat(list(features), dim=1)))

    def train_last(self) -> None:
        """Put the last backbone and the head in train mode, all others in eval mode, frozen."""
        self.train()
        for backbone in self.backbones[:-1]:
            backbone.eval().requires_grad_(False)


def align(head: nn.Linear, num_new: int) -> None:
    """Scale the newest rows to the mean length of the old ones."""
    with torch.no_grad():
        lengths = head.weight.norm(dim=1)
        head.weight[-num_new:] *= lengths[:-num_new].mean() / lengths[-num_new:].mean()


def merged(mergeable: nn.Module, provisional: nn.Module, weight: float) -> nn.Module:
    """Average two backbones' parameters, with batch-norm statistics afresh."""
    student = copy.deepcopy(mergeable)
    others = dict(provisional.named_parameters())
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            parameter.copy_(weight * parameter + (1 - weight) * others[name])
    for module in student.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    return student.requires_grad_(True)
