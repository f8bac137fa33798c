"""The numbers of an evaluation, by hand."""

from pathlib import Path

import pytest

from grace.learner.evaluate import Confusion, Evaluated, ImageResult


def result(name: str, predicted: str, probability: float, number: int = 0) -> ImageResult:
    return ImageResult(Path(f"{name}-{number}.png"), name, predicted, probability)


FOUND = Evaluated(
    model=Path("m"),
    version=3,
    images=Path("images"),
    results=[
        result("ant", "ant", 0.9),
        result("ant", "bee", 0.8, 1),
        result("ant", "bee", 0.6, 2),
        result("bee", "bee", 1.0),
        result("bee", "bee", 0.7, 1),
        result("cat", "ant", 0.95),
        result("cat", "cat", 0.5, 1),
        result("cat", "cat", 0.5, 2),
    ],
)


def test_accuracies() -> None:
    assert (FOUND.overall.num, FOUND.overall.num_right) == (8, 5)
    assert [(own.name, own.num_right, own.num) for own in FOUND.classes] == [
        ("ant", 1, 3),
        ("cat", 2, 3),
        ("bee", 2, 2),
    ]
    assert [FOUND.reaches(limit) for limit in (None, 62.5, 62.6)] == [True, True, False]


def test_confusions_and_mistakes() -> None:
    assert FOUND.confusions == [Confusion("ant", "bee", 2), Confusion("cat", "ant", 1)]
    assert [found.probability for found in FOUND.mistakes] == [0.95, 0.8, 0.6]


def test_calibration() -> None:
    # Bins of 1/15: (0.5, 0.5) 2 right, 0.6 wrong, 0.7 right, 0.8 wrong, 0.9 right, 0.95 wrong and
    # 1.0 right share the last one.
    apart = (2 - 1.0) + 0.6 + 0.3 + 0.8 + 0.1 + abs(1 - 1.95)
    assert FOUND.calibration_error == pytest.approx(apart / 8)
