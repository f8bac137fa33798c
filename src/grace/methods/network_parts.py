"""Name the parts of a whole network for a phase: one that trains, or a frozen one."""

from grace.engine.phase import Part
from grace.nn.backbone import Backbone
from grace.nn.expandable import ExpandableNetwork


def trained_network(
    network: ExpandableNetwork, backbone: Backbone | None = None
) -> dict[str, Part]:
    """Name the parts of a network of one backbone that trains: "backbone.0" and "head".

    Args:
        network: has one backbone; a trunk does not train.
        backbone: replaces the network's own and its trunk. The first phase of a method whose trunk
            trains, trains the backbone that trunk and branch were cut from.
    """
    parts: dict[str, Part] = {}
    source = "images"
    if network.trunk is not None and backbone is None:
        parts["trunk"], source = Part(network.trunk, trains=False), "trunk"
    return parts | {
        "backbone.0": Part(backbone or network.backbone, [source]),
        "head": Part(network.head, ["backbone.0"]),
    }


def frozen_network(network: ExpandableNetwork, *, has_head: bool = True) -> dict[str, Part]:
    """Name the parts of an old network that does not train: "old.0", …, "old.head".

    Args:
        network: its backbones read the part "trunk" if they share one.
        has_head: include the head, for the old network's logits.
    """
    parts: dict[str, Part] = {}
    if network.trunk is not None:
        parts["trunk"] = Part(network.trunk, trains=False)
    source = "images" if network.trunk is None else "trunk"
    names = [f"old.{i}" for i in range(len(network.backbones))]
    for name, backbone in zip(names, network.backbones, strict=True):
        parts[name] = Part(backbone, [source], trains=False)
    if has_head:
        parts["old.head"] = Part(network.head, names, trains=False)
    return parts


def frozen_last(network: ExpandableNetwork, name: str) -> dict[str, Part]:
    """Name the parts of the last backbone, which does not train: ``name`` and "trunk", if any."""
    if network.trunk is None:
        return {name: Part(network.backbones[-1], trains=False)}
    trunk = Part(network.trunk, trains=False)
    return {"trunk": trunk, name: Part(network.backbones[-1], ["trunk"], trains=False)}
