"""The objective of one of BEEF's modules: classification, and an energy loss beside it.

Shapes: B images, K classes, R outputs of a module: one for each old task, one for each new class.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from grace.engine.phase import Batch, Loss, Mode, Objective
from grace.nn.losses.classification import cross_entropy
from grace.nn.losses.energy import batch_energy, energy_loss, energy_share
from grace.settings.methods import BeefSettings

Module = Callable[[Tensor, Mode | None], tuple[Tensor, Tensor]]
"""Maps images (B, C, H, W) to a module's outputs (B, R) and energies (B, K)."""


def module_objective(
    settings: BeefSettings,
    labels_of: Tensor,
    num_old: int,
    backbone: str,
    heads: Sequence[str],
    log_prior: Tensor | None,
) -> Objective:
    """Make the objective L = CE(z, y) + η·L_en of one module.

    All classes of an old task are one output. The logits of old tasks are divided by the alignment,
    or, with a class prior, the prior is added instead.

    Args:
        settings: η, and how samples are made.
        labels_of: the output of each class, shape (K,).
        num_old: outputs of old tasks, the first ones.
        backbone: name of the part that reads the images.
        heads: names of the parts that give the outputs, in order; the part "energy" gives the
            energies.
        log_prior: of the outputs, shape (R,); ``None``: no prior.
    """
    divisor = torch.ones(int(labels_of.max()) + 1, device=labels_of.device)
    if settings.class_prior == "none":
        divisor[:num_old] = settings.alignment

    def run(batch: Batch, images: Tensor, mode: Mode | None) -> tuple[Tensor, Tensor]:
        features = batch.run(backbone, images, mode=mode)
        outputs = [batch.run(head, features) for head in heads]
        return torch.cat(outputs, dim=1), batch.run("energy", features)

    def objective(batch: Batch) -> dict[str, Loss]:
        labels = labels_of[batch.labels]
        logits = torch.cat([batch[head] for head in heads], dim=1) / divisor
        losses = {"classification": Loss(cross_entropy(logits, labels, log_prior))}
        if settings.energy_weight:
            module = partial(run, batch)
            outputs, energies = module(energy_samples(settings, batch, module), None)
            loss = energy_loss(outputs, energies, batch.labels, batch.everyone(labels))
            losses["energy"] = Loss(loss, settings.energy_weight)
        return losses

    return objective


def energy_samples(settings: BeefSettings, batch: Batch, module: Module) -> Tensor:
    """Make energy samples: change images (B, C, H, W) so that the module gives them less energy.

    x ← x − lr·∇ log Σ_n Σ_k σ([z, e](x_n))_k, and noise, from the batch rotated by 180°; the sum is
    over the whole batch.

    Args:
        settings: number and size of the steps, and their noise.
        batch: its images, rotated by 180°, are the start.
        module: as it stands, in eval mode.
    """
    samples = batch.images.flip(2, 3)
    for _ in range(settings.energy_steps):
        samples.requires_grad_(True)
        shares = energy_share(*module(samples, "eval"))
        everyone = batch.everyone(shares.detach())
        # By the samples alone: no gradient of any weight is computed.
        (slope,) = torch.autograd.grad(batch_energy(shares, everyone), samples)
        noise = settings.energy_noise * batch.normal(samples)
        samples = samples.detach() - settings.energy_lr / len(everyone) * slope + noise
    return samples
