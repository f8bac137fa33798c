"""The exemplars with which a method costs what the largest one costs. Imports no torch."""

from grace.base.errors import GraceError
from grace.runs import RunRecord, metrics


def aligned_size(
    plain: RunRecord, reference: RunRecord, images_per_backbone: int | None = None
) -> int:
    """Return the exemplars with which a method costs what the reference costs.

    Only backbones count (docs/protocols.md#memory-aligned-counts).

    Args:
        plain: finished run of the method with the usual memory M0.
        reference: finished run of the largest method.
        images_per_backbone: M = M0 + ⌊(P_ref − P)/P_1 · this⌋, with P_1 the mean size of the
            reference's backbones; ``None``: M = M0 + ⌊(P_ref − P) · 4/bytes of a raw image⌋.

    Raises:
        GraceError: if the plain run is larger than the reference, or has no fixed memory.
    """
    memory = plain.info.config.get("memory")
    base = memory.get("size") if isinstance(memory, dict) else None
    dataset = plain.info.dataset
    if not isinstance(base, int) or dataset is None:
        raise GraceError(f"{plain.directory} has no memory of a fixed size to align")
    total, own = (run.tasks[-1].parameters.backbones for run in (reference, plain))
    if images_per_backbone is None:
        channels, height, width = dataset.shape
        return metrics.memory_aligned_size(total, own, channels * height * width, base)
    count = reference.tasks[-1].backbones
    # The smaller part of the difference is dropped once, as in the formula over bytes.
    return metrics.memory_aligned_size(
        total * images_per_backbone * count, own * images_per_backbone * count, 4 * total, base
    )
