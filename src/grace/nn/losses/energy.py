"""BEEF's energy loss, and its fused modules as one affine map.

Shapes: B images, K classes of which K_old are old, R outputs of a module: one for each of its old
tasks, then one for each new class. d features of a module, D of all older ones.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Affine = tuple[Tensor, Tensor]
"""Weight, a row for each output, and bias."""


def module_labels(class_counts: Sequence[int], num_new: int) -> Tensor:
    """Map every class to its output of the newest module.

    An old class has the output of its task, 0 to t − 2; new class number j has output t − 1 + j.

    Args:
        class_counts: classes of each of the t − 1 old tasks, in order.
        num_new: K_new.

    Returns:
        Outputs of all classes, shape (K,).
    """
    old = torch.arange(len(class_counts)).repeat_interleave(torch.tensor(class_counts).long())
    return torch.cat([old, len(class_counts) + torch.arange(num_new)])


def output_log_prior(log_prior: Tensor, labels_of: Tensor) -> Tensor:
    """Average the classes' priors over each output, log π_r = log mean_{k of r} π_k.

    An old task's output stands for all its classes. A mean, not a sum: in balanced predictions a
    task of many classes is as likely as all its classes together.

    Args:
        log_prior: log π, shape (K,).
        labels_of: the output of each class, shape (K,).

    Returns:
        Shape (R,), float32.
    """
    priors = torch.zeros(int(labels_of.max()) + 1, device=log_prior.device)
    sizes = torch.bincount(labels_of)
    return (priors.index_add_(0, labels_of, log_prior.exp()) / sizes).log()


def energy_share(outputs: Tensor, energies: Tensor) -> Tensor:
    """Log probability of all energies together, log Σ_k σ([outputs, energies])_{R+k}.

    Args:
        outputs: of the module, shape (B, R).
        energies: one for each class, shape (B, K).

    Returns:
        Shape (B,), at most 0, float32.
    """
    outputs, energies = outputs.float(), energies.float()
    everything = torch.cat([outputs, energies], dim=1)
    return energies.logsumexp(dim=1) - everything.logsumexp(dim=1)


def batch_energy(shares: Tensor, everyone: Tensor) -> Tensor:
    """Return a scalar with the gradient of B · log Σ_n exp(share_n) for this process's rows.

    It is Σ_n w_n · share_n with constant weights w = B · σ(everyone), which are computed from the
    rows of all processes. The factor B keeps the gradient of a row, about 1/B, from being rounded
    to 0 in float16.

    Args:
        shares: log shares of this process's rows, one-dimensional.
        everyone: log shares of the whole batch, shape (B,).

    Returns:
        Scalar.
    """
    total = everyone.detach().logsumexp(dim=0)
    weights = (shares.detach() - total).exp() * len(everyone)
    return (weights * shares).sum()


def energy_loss(outputs: Tensor, energies: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Mean cross-entropy of energy samples, with the energies of their classes as targets.

    CE([outputs, energies], R + y), in which the outputs of all classes of the batch are replaced by
    1e-9, so that the loss does not lower them.

    Args:
        outputs: of the module for the samples, shape (B, R).
        energies: of the module for the samples, shape (B, K).
        labels: class indices of the images that the samples were made from, shape (B,).
        present: outputs of the batch's images, one-dimensional, in 0..R−1.

    Returns:
        Scalar.
    """
    num_outputs = outputs.shape[1]
    stands = torch.zeros(num_outputs, dtype=torch.bool, device=outputs.device)
    stands = stands.scatter(0, present, torch.ones_like(present, dtype=torch.bool))
    logits = torch.cat([outputs.masked_fill(stands, 1e-9), energies], dim=1)
    return F.cross_entropy(logits, num_outputs + labels)


def fused_rows(
    old: Affine, prototypes: Affine, new: Affine, correction: Affine, tasks: Tensor
) -> Affine:
    """Join the newest module to the old ones: an affine map of all features to all classes.

    An old class c of task i has the weights [W_c, (1 + α_i)·p_i] and the bias
    b_c + (1 + α_i)·q_i + β_i; a new class has [0, its own row] and its own bias.

    Args:
        old: W (K_old, D) and b (K_old,) of the old classes.
        prototypes: p (t − 1, d) and q (t − 1,), the newest module's outputs for old tasks.
        new: rows (K_new, d) and biases (K_new,) of the new classes.
        correction: α and β, each of shape (t − 1,).
        tasks: each old class's task, from 0, shape (K_old,).

    Returns:
        Weight (K, D + d) and bias (K,).
    """
    scale = (1 + correction[0])[tasks]
    columns = scale[:, None] * prototypes[0][tasks]
    bias = old[1] + scale * prototypes[1][tasks] + correction[1][tasks]
    blank = new[0].new_zeros(len(new[0]), old[0].shape[1])
    weight = torch.cat([torch.cat([old[0], columns], 1), torch.cat([blank, new[0]], 1)])
    return weight, torch.cat([bias, new[1]])
