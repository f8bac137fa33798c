"""Measure the saturation of a network's last backbone, for studies; nothing changes."""

from collections.abc import Generator
from typing import Any

from grace.data.images import LabelledImages
from grace.engine.phase import LossProbe, Sweep, Work
from grace.methods.network_parts import frozen_last, frozen_network
from grace.nn.capacity import FeatureMoments
from grace.nn.expandable import ExpandableNetwork
from grace.settings.experiment import MeasureSettings


def measured(
    network: ExpandableNetwork, data: LabelledImages, probe: MeasureSettings
) -> Generator[Work, Any, dict[str, float]]:
    """Yield the sweep and the probe that the settings ask for; return the values by name.

    Args:
        network: as it stands after a task's last phase.
        data: the task's images and the exemplars, D̃_t.
        probe: which measures, and how exactly.
    """
    found: dict[str, float] = {}
    if "effective_rank" in probe.measures:
        parts, moments = frozen_last(network, "last"), FeatureMoments()
        rank = yield Sweep(name="probe rank", parts=parts, data=data, reducer=moments)
        found["effective_rank"] = rank
    if set(probe.measures) - {"effective_rank"}:
        parts = frozen_network(network)
        *_, last, _head = parts
        found |= yield LossProbe(
            name="probe loss", parts=parts, probed=last, data=data, settings=probe
        )
    return found
