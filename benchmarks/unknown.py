"""Measure how many images of classes that were never learnt a learner recognises as unknown.

    OMP_NUM_THREADS=1 python benchmarks/unknown.py IMAGES --out LEARNER
    OMP_NUM_THREADS=1 python benchmarks/unknown.py IMAGES --weights lite0.safetensors

``IMAGES`` holds ``train/`` and ``test/`` with a folder for each class. Every second class is
learnt, the others are asked about. A small network is trained from scratch and saved as
``LEARNER``; one that is there already is used again. With ``--weights`` the frozen features of an
EfficientNet-Lite0 (``tf_efficientnet_lite0`` of timm) take its place, under logistic regression;
these weights know ImageNet's classes and flatter them.

For every score: what leave-one-class-out on the held-out images promises, the share of images of
unknown classes that is found, and the share of test images of learnt classes marked by mistake.

At the end, how much of that the network's features and logits hold at all: a linear classifier is
shown images of unknown classes, which no score ever sees, and then tells test images of learnt
classes from those of a further unknown class, or of the very classes that it was shown.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from grace.data.folders import UpdateFolder, load_update
from grace.learner.false_alarms import cutoff, found_share
from grace.learner.familiarity import SCORES, Reference, UnknownScore, refitted_logits
from grace.learner.learner import Learner
from grace.learner.unknown import RATE, TRAINED_SCORES, Seen, left_out_ranks, recogniser
from grace.settings.experiment import ExperimentSettings

HELD_OUT = 50
NUM_EXEMPLARS = 50


def learnt(folder: UpdateFolder, known: Sequence[str], path: Path, epochs: int) -> Learner:
    """Return a ResNet-20 that has learnt some classes of a folder, trained if it is not saved."""
    if (path / "current.json").exists():
        return Learner.load(path)
    recipe = {"epochs": epochs, "batch_size": 64, "lr": 0.1, "schedule": "cosine"}
    settings = ExperimentSettings.model_validate(
        {
            "name": "unknown",
            "data": {"augmentation": "cifar"},
            "memory": {"per_class": NUM_EXEMPLARS, "size": None, "validation": HELD_OUT},
            "backbone": {"name": "resnet20"},
            "method": {"name": "replay", "base": recipe, "update": recipe},
            "engine": {"device": "cpu", "threads": 1},
        }
    )
    learner = Learner.create(settings, shape=folder.images.shape, directory=path)
    places = [i for i, name in enumerate(folder.labels) if name in known]
    learner.update(folder.images.pixels[places], [folder.labels[i] for i in places])
    return learner


@dataclass(frozen=True)
class Images:
    """What a network makes of the images; those of unknown classes have labels of their own.

    Args:
        exemplars: of learnt classes.
        held_out: of learnt classes, not trained on.
        known: test images of learnt classes, without labels.
        unknown: test images of the other classes.
        shown: training images of the other classes, for ``bound``.
    """

    exemplars: Seen
    held_out: Seen
    known: Seen
    unknown: Seen
    shown: Seen


def seen_by_learner(learner: Learner, folder: UpdateFolder, known: Sequence[str]) -> Images:
    """Ask a learner about all images of a folder."""
    model = learner.model
    exemplars, held_out = model.exemplars(), learner.held_out.data()
    assert exemplars is not None
    assert held_out is not None
    assert folder.test_images is not None
    names = sorted(set(folder.labels) - set(known))
    tested, trained = numbered(folder.test_labels, names), numbered(folder.labels, names)
    pixels = folder.test_images.pixels
    return Images(
        model.see(exemplars),
        model.see(held_out),
        model.see_images(pixels[tested < 0]),
        labelled(model.see_images(pixels[tested >= 0]), tested[tested >= 0]),
        labelled(model.see_images(folder.images.pixels[trained >= 0]), trained[trained >= 0]),
    )


def numbered(labels: Sequence[str], names: Sequence[str]) -> Tensor:
    """Return each label's place among the names (N,), and -1 for others."""
    return torch.tensor([names.index(label) if label in names else -1 for label in labels])


def labelled(seen: Seen, labels: Tensor) -> Seen:
    """Return what was seen with labels (n,)."""
    return Seen(seen.features, seen.logits, labels)


def seen_by_lite0(folder: UpdateFolder, known: Sequence[str], weights: Path, size: int) -> Images:
    """Return the same of frozen features, under logistic regression on what is not held out."""
    import timm

    model: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    model.load_state_dict(load_file(weights))
    model.eval()

    @torch.no_grad()
    def features(pixels: Tensor) -> Tensor:
        parts = []
        for batch in pixels.split(32):
            large = torch.nn.functional.interpolate(batch.float() / 127.5 - 1, size, mode="bicubic")
            parts.append(model.forward_head(model.forward_features(large), pre_logits=True))
        return torch.cat(parts)

    draws = torch.Generator().manual_seed(0)
    labels = torch.tensor([[*known, name].index(name) for name in folder.labels])
    groups: list[list[Tensor]] = [[], [], []]
    for index in range(len(known)):
        places = (labels == index).nonzero().flatten()
        places = places[torch.randperm(len(places), generator=draws)]
        groups[0].append(places[HELD_OUT : HELD_OUT + NUM_EXEMPLARS])
        groups[1].append(places[:HELD_OUT])
        groups[2].append(places[HELD_OUT:])
    exemplars, held_out, trained = (torch.cat(places) for places in groups)
    found = features(folder.images.pixels[trained])

    def seen(rows: Tensor, own: Tensor) -> Seen:
        return Seen(rows, refitted_logits(found, labels[trained], rows), own)

    assert folder.test_images is not None
    names = sorted(set(folder.labels) - set(known))
    asked, shown = numbered(folder.test_labels, names), numbered(folder.labels, names)
    tested = features(folder.test_images.pixels)
    return Images(
        seen(features(folder.images.pixels[exemplars]), labels[exemplars]),
        seen(features(folder.images.pixels[held_out]), labels[held_out]),
        seen(tested[asked < 0], asked[asked < 0]),
        seen(tested[asked >= 0], asked[asked >= 0]),
        seen(features(folder.images.pixels[shown >= 0]), shown[shown >= 0]),
    )


def report(images: Images, names: Sequence[str]) -> None:
    """Print every score's shares, which of ``names`` is chosen, and the bound."""
    exemplars, held_out = images.exemplars, images.held_out
    reference = Reference(exemplars.features, exemplars.labels)
    print(f"{'score':22} promised  found  false alarms   at a rate of {RATE:g}")
    for name, left_out in left_out_ranks(exemplars, held_out).items():
        score = UnknownScore.fitted(name, reference, held_out.features, held_out.logits)
        lowest = cutoff(score(held_out.features, held_out.logits), RATE)
        shares = [
            found_share(left_out, RATE),
            *(
                float((score(own.features, own.logits) < lowest).double().mean())
                for own in (images.unknown, images.known)
            ),
        ]
        print(f"{name:22} {shares[0]:8.1%} {shares[1]:6.1%} {shares[2]:13.1%}")
    print("chosen:", recogniser(exemplars, held_out, names=names).score.name)
    others, same = bound(images)
    print(f"shown images of the other unknown classes, a linear classifier finds {others:.1%}")
    print(f"shown images of all unknown classes, it finds {same:.1%}")


def bound(images: Images) -> tuple[float, float]:
    """Measure what a classifier finds that was shown images of unknown classes, at ``RATE``.

    Returns:
        Share found of a class of which it was shown nothing (a mean over all of them), and of the
        classes that it was shown.
    """
    shown, unknown, own = images.shown, images.unknown, _rows(images.held_out)

    def found(trained: Tensor, asked: Tensor) -> float:
        rows = _rows(shown.subset(trained))
        told = make_pipeline(
            StandardScaler(), LogisticRegression(C=0.1, max_iter=2000, class_weight="balanced")
        )
        told.fit(np.concatenate([rows, own]), np.arange(len(rows) + len(own)) >= len(rows))
        lowest = np.quantile(told.decision_function(_rows(images.known)), RATE)
        return float((told.decision_function(_rows(unknown.subset(asked))) < lowest).mean())

    classes = shown.labels.unique().tolist()
    others = [found(shown.labels != one, unknown.labels == one) for one in classes]
    return float(np.mean(others)), found(shown.labels >= 0, unknown.labels >= 0)


def _rows(seen: Seen) -> NDArray[np.float64]:
    return torch.cat([seen.features, seen.logits], dim=1).double().numpy()


def main() -> None:
    """Learn or load, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--out", type=Path, default=Path("unknown-learner"))
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--size", type=int, default=32, help="side of the images from scratch")
    parser.add_argument("--weights", type=Path, help="safetensors file of tf_efficientnet_lite0")
    parser.add_argument("--input-size", type=int, default=128, help="side of what it is shown")
    parser.add_argument("--first", type=int, choices=(0, 1), default=0, help="first class learnt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    most = 200 if options.weights else None
    folder = load_update(
        options.images, 3, 64 if options.weights else options.size, max_images_per_class=most
    )
    known = sorted(set(folder.labels))[options.first :: 2]
    if options.weights:
        report(seen_by_lite0(folder, known, options.weights, options.input_size), SCORES)
    else:
        learner = learnt(folder, known, options.out, options.epochs)
        report(seen_by_learner(learner, folder, known), TRAINED_SCORES)


if __name__ == "__main__":
    main()
