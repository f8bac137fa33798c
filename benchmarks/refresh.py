"""Measure what more images of one class cost the other classes of a learner.

Five classes of 140 images are learnt, then 140 more images of the first one. Accuracies are those
on all test images; both learners draw the same numbers, and differ in ``class_prior`` only.

    python benchmarks/refresh.py tiny-imagenet-20-64px
"""

import argparse
import tempfile
from pathlib import Path

from first_learner import part, percent
from grace.data.update_folder import load_update
from grace.learner import teaching
from grace.learner.learn_call import LearnOptions
from grace.learner.learner import Learner
from grace.learner.requested import RequestedSettings

PRIORS = ("none", "balanced")


def main() -> None:
    """Print a table: each class before and after, without and with the class prior."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="folder with train/ and test/")
    parser.add_argument("--minutes", default="1", help="of training, for each update")
    given = parser.parse_args()
    names = sorted(path.name for path in (given.images / "train").iterdir() if path.is_dir())[:5]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        first = part(given.images / "train", place / "first", names, 140)
        more = part(given.images / "train", place / "both", names[:1], 280)
        for file in sorted((more / names[0]).iterdir())[:140]:
            file.unlink()
        test = part(given.images / "test", place / "test", names, None)
        found = {}
        for prior in PRIORS:
            model = place / prior
            wanted = [f"method.class_prior={prior}", f"budget.minutes={given.minutes}"]
            teaching.learn(model, first, RequestedSettings(None, wanted))
            found[prior, "before"] = tested(model, test, names)
            teaching.learn(model, more, options=LearnOptions())
            found[prior, "after"] = tested(model, test, names)
    print("| class | none: before | after | balanced: before | after |\n|---|---:|---:|---:|---:|")
    for number, name in enumerate([*names, "all"]):
        cells = [
            f"{found[prior, when][number]}" for prior in PRIORS for when in ("before", "after")
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def tested(model: Path, folder: Path, names: list[str]) -> list[float]:
    """Return the accuracies (%) of each class and of all on the images of a folder."""
    learner = Learner.load(model)
    data = load_update(folder, 3, learner.shape[1])
    pairs = list(zip(learner.predict(data.images), data.labels, strict=True))
    return [percent(pairs, [name]) for name in names] + [percent(pairs, names)]


if __name__ == "__main__":
    main()
