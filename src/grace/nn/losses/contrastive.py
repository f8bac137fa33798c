"""Losses that compare two views of every image. Shapes: B images, o embedding width.

Rows 2i and 2i + 1 are the two views of image i.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(anchors: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """InfoNCE: cross-entropy of finding each image's other view among all views.

    ``− mean_r log( exp(s(r, r')/τ) / Σ_{q ≠ r} exp(s(r, q)/τ) )``, where s is the cosine of an
    anchor and a candidate, r' is the row of the other view of r's image, and a row is never
    compared with the candidate of the same row. With candidates from a frozen network, it
    distils that network's embeddings.

    Args:
        anchors: (2B, o).
        candidates: (2B, o), the anchors themselves or another network's embeddings.
        temperature: τ > 0. Lower: the most similar views count more.

    Returns:
        Scalar: the mean over the 2B anchors; 0 for a single image, whose other view has no rival.

    Source: van den Oord et al., arXiv:1807.03748; in the form of Chen et al., "A Simple Framework
    for Contrastive Learning of Visual Representations" (ICML 2020), Eq. 1.
    """
    rows = torch.arange(len(anchors), device=anchors.device)
    # Not in the precision of training: rounding to bfloat16 and dividing by τ would move the
    # logits by hundredths.
    with torch.autocast(anchors.device.type, enabled=False):
        one, other = (F.normalize(given.float(), dim=1) for given in (anchors, candidates))
        logits = (one @ other.T / temperature).masked_fill(rows == rows[:, None], float("-inf"))
        return F.cross_entropy(logits, rows ^ 1)
