"""Inference-only copies with batch norm folded into the convolutions."""

from collections import Counter

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from grace.nn.expandable import copy_of


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
