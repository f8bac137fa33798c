"""DGR without its rule for the head's gradients, or without its prior: which of them helps?

::

    python benchmarks/dgr_parts.py rule 1 runs/dgr-without-rule data.root=tiny-imagenet
    python benchmarks/dgr_parts.py prior 1 runs/dgr-without-prior data.root=tiny-imagenet

run ``tiny-imagenet-16px`` with DGR and seed 1, without the named part, and write the records there.
The parts are left out by changing the code, which a record does not show: by their settings these
are runs of DGR, so keep them out of the folders that ``grace study`` and ``compare`` look through.
"""

import sys
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from grace.runs.run import run_experiment
from grace.settings.load import load_experiment


def no_prior(counts: Tensor) -> Tensor:
    """Stand for ``log_prior``: all classes are alike, (K,) zeros."""
    return torch.zeros(len(counts))


REPLACED = {
    "rule": ("grace.methods.dgr.DGR._reweighted", lambda self, phase, task, counts: phase),
    "prior": ("grace.methods.dgr.log_prior", no_prior),
}


def main(part: str, seed: str, out: str, *overrides: str) -> None:
    """Run the experiment without one part."""
    settings = load_experiment("tiny-imagenet-16px", ["method=dgr", f"seed={seed}", *overrides])
    with mock.patch(*REPLACED[part]):
        record = run_experiment(settings, Path(out))
    print(record.directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
