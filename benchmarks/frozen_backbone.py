"""A frozen, pre-trained backbone against learning from scratch, on the same stream of updates.

    python benchmarks/frozen_backbone.py IMAGES WEIGHTS.safetensors [--per-class 100] [--epochs 3]

IMAGES has ``train/`` and ``test/`` of class folders. Their classes, in the order of a seeded draw,
come in updates of four. Both learners are made by the settings that ``grace learn`` would take,
see the same images, and are measured on all test images of the classes seen so far. From scratch
is GRACE with the settings of the experiment ``folder``, but with a smaller backbone and fewer
epochs, so that it ends within minutes: ``--epochs`` of each phase. Seconds are of the processor, in
one process with one thread.

If the weights have learnt ImageNet and the images show its classes, the frozen learner is
flattered: it has seen such images before.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from grace.base.randomness import generator
from grace.data.folders import load_folder
from grace.data.images import Dataset
from grace.learner.learner import Learner
from grace.learner.requested import RequestedSettings
from grace.settings.experiment import DataSettings

ALWAYS = ["engine.threads=1", "engine.compile=false", "engine.device=cpu"]
BACKBONE = "timm/tf_efficientnet_lite0"


def updates(data: Dataset, seed: int, classes: int = 4) -> Iterator[Sequence[int]]:
    """Yield the labels of each update, in a drawn order."""
    order = torch.randperm(len(data.class_names), generator=generator(seed, "order")).tolist()
    for first in range(0, len(order), classes):
        yield order[first : first + classes]


def run(name: str, data: Dataset, overrides: Sequence[str], seed: int) -> None:
    """Learn all updates, and print accuracy and seconds after each."""
    settings = RequestedSettings(None, [*overrides, *ALWAYS, f"seed={seed}"]).settings()
    learner = Learner.create(settings, shape=data.train.images.shape)
    names, seen, seconds = data.class_names, list[int](), 0.0
    accuracies = list[float]()
    for labels in updates(data, seed):
        chosen = torch.isin(data.train.labels, torch.tensor(labels)).nonzero().flatten()
        part = data.train.subset(chosen)
        started = time.process_time()
        learner.update(part.images, [names[int(label)] for label in part.labels])
        took = time.process_time() - started
        seconds += took
        seen += labels
        tested = data.test.subset(
            torch.isin(data.test.labels, torch.tensor(seen)).nonzero().flatten()
        )
        right = learner.score(tested.images, [names[int(label)] for label in tested.labels])
        accuracies.append(100 * right)
        print(f"{name}: {len(seen)} classes, {100 * right:.1f} %, {took:.0f} s", flush=True)
    mean = sum(accuracies) / len(accuracies)
    print(
        f"{name}: last {accuracies[-1]:.1f} %, average {mean:.1f} %, {seconds:.0f} s of processor"
    )


def main() -> None:
    """Run the learners that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3, help="of every phase from scratch")
    parser.add_argument("--scratch-backbone", default="resnet20")
    parser.add_argument("--input-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("scratch", "linear", "nearest_mean"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_folder(
        DataSettings(
            source="folder",
            root=str(options.images),
            image_size=64,
            channels=3,
            max_train_per_class=options.per_class,
        )
    )
    pretrained = [
        f"backbone.name={BACKBONE}",
        f"backbone.weights={options.weights}",
        f"backbone.input_size={options.input_size}",
    ]
    phases = [f"method.{p}.epochs={options.epochs}" for p in ("base", "grow", "compress")]
    learners = {
        "linear": [*pretrained, "method.head=linear"],
        "nearest_mean": [*pretrained, "method.head=nearest_mean"],
        "scratch": [f"backbone.name={options.scratch_backbone}", *phases],
    }
    for name, overrides in learners.items():
        if options.only in (None, name):
            run(name, data, overrides, options.seed)


if __name__ == "__main__":
    main()
