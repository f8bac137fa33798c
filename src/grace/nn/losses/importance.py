"""Importance of parameters, and the penalty for moving the important ones (EWC).

Parameters are given by name. Of a grown head, the rows that existed before are compared
(methods/ewc.py).
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def quadratic_penalty(
    parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], importance: Mapping[str, Tensor]
) -> Tensor:
    """Penalise the distance from an anchor, Ω = ½ Σ_n Σ F_n ⊙ (θ_n[:len(θ*_n)] − θ*_n)².

    Args:
        parameters: θ by name, of the anchor's shapes or with more rows.
        anchor: θ* by name.
        importance: F ≥ 0, of the anchor's shapes and names. The higher, the firmer a parameter
            is held at its anchor.

    Returns:
        Scalar.
    """
    terms = [
        (weight * (_rows_of(parameters[name], weight) - anchor[name]).square()).sum()
        for name, weight in importance.items()
    ]
    return torch.stack(terms).sum() / 2


def merged_importance(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Average two importances, F ← α·F_old + (1 − α)·F_new; new rows keep F_new.

    Args:
        old: F_old by name; parameters that it lacks keep F_new.
        new: F_new, of the same shapes or with more rows.
        share: α in [0, 1]. Higher: earlier tasks count more.

    Returns:
        F, of the shapes of ``new``.
    """
    assert 0 <= share <= 1
    merged = {name: weight.clone() for name, weight in new.items()}
    for name, weight in old.items():
        _rows_of(merged[name], weight).mul_(1 - share).add_(weight, alpha=share)
    return merged


def _rows_of(tensor: Tensor, smaller: Tensor) -> Tensor:
    """View the first rows, as many as ``smaller`` has."""
    return tensor if tensor.shape == smaller.shape else tensor[: len(smaller)]
