"""Teach a learner new classes from arrays: no experiment, no files, no record.

A first update learns the digits 0 to 4, a second one 5 to 9 without the images of the first.
Run it as ``python examples/learn_from_arrays.py``; settings may follow, as in
``python examples/learn_from_arrays.py --epochs 20 method.threshold=0.5``.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from grace.learner.learner import Learner
from grace.settings.load import load_experiment


def main() -> None:
    """Update twice, then predict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of every phase")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()

    # Images are uint8 (N, channels, height, width); labels are class names.
    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(np.uint8)[:, None]
    names = np.array([f"digit {target}" for target in digits.target])
    old = digits.target < 5
    train, test = train_test_split(np.arange(len(images)), random_state=0, stratify=digits.target)

    # Method, backbone, memory and augmentation come from an experiment; its data and tasks do not.
    phases = ("base", "grow", "compress")
    short = [f"method.{phase}.epochs={arguments.epochs}" for phase in phases]
    cosine = [f"method.{phase}.schedule=cosine" for phase in phases]
    settings = load_experiment("digits", ["method=grace", *short, *cosine, *arguments.settings])
    levels = images[train] / 255
    mean, std = [float(levels.mean())], [float(levels.std())]
    learner = Learner.create(settings, shape=(1, 8, 8), mean=mean, std=std)

    for number, first in enumerate([True, False], start=1):
        chosen = train[old[train] == first]
        update = learner.update(images[chosen], list(names[chosen]))
        accuracy = {
            part: f"{learner.score(images[places], list(names[places])):.1%}"
            for part, places in (("0-4", test[old[test]]), ("5-9", test[~old[test]]))
        }
        size = learner.size()
        print(f"update {number}: {update.outcome.verdict}, {size.num_backbones} backbone(s)")
        print(f"  share of right answers: {accuracy}")

    few = test[:5]
    print("predicted", learner.predict(images[few]))
    print("true     ", names[few].tolist())
    surest = learner.predict_proba(images[few]).max(dim=1).values
    print("surest   ", [f"{probability:.1%}" for probability in surest])


if __name__ == "__main__":
    main()
