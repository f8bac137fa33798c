"""Words for single classes and the gate, by hand."""

import json

import pytest
from scipy.stats import binomtest

from grace.cli.class_lines import class_facts, class_table, gate_text, losses, predictor_text
from grace.learner.accuracies import Accuracies, ClassAccuracy
from grace.learner.gate import Limits, judge
from grace.learner.predictor import Predictor

NAMES = ("cat", "dog", "emu")
# Cats gain 8 of 50, dogs fall from 28 % to 0 %, emus are new: the mean of old classes loses 6.
ACCURACY = Accuracies(
    old_before=0.44,
    old_after=0.38,
    new_after=0.7,
    num_old=100,
    num_new=50,
    classes=(
        ClassAccuracy(index=0, num=50, before=30, after=38, lost=0),
        ClassAccuracy(index=1, num=50, before=14, after=0, lost=14),
        ClassAccuracy(index=2, num=50, after=35),
    ),
)


def said(limits: Limits, *, is_first: bool = False) -> list[str]:
    return [gate_text(own, NAMES, is_first=is_first) for own in judge(ACCURACY, limits)]


def test_what_was_lost_is_named() -> None:
    assert (losses(ACCURACY, NAMES), losses(Accuracies(), NAMES)) == ("dog 28.0 → 0.0 %", "")


def test_the_table_has_the_worst_first() -> None:
    lines = class_table(ACCURACY, NAMES)
    assert [line.split()[0] for line in lines] == ["class", "dog", "cat", "emu"]
    # Wilson's intervals of 14 and of 0 among 50 are 17.5 to 41.7 % and 0 to 7.1 %.
    words = " ".join(lines[1].split())
    assert words == "dog 28.0 % 17 – 42 % 0.0 % 0 – 7 % of 50: lost"
    assert " ".join(lines[3].split()) == "emu – 70.0 % 56 – 81 % of 50"


def test_a_first_update_has_no_columns_before_it() -> None:
    only_new = Accuracies(new_after=0.7, num_new=50, classes=ACCURACY.classes[2:])
    lines = [" ".join(line.split()) for line in class_table(only_new, NAMES)]
    assert lines == ["class after 95 % interval", "emu 70.0 % 56 – 81 % of 50"]


def test_what_the_gate_says() -> None:
    assert said(Limits(5, 10, 60)) == [
        "rejected: the old classes lost 6.0 points, 5 allowed (--max-drop); chance could explain "
        "it: 100 held-out images of the old classes can show a drop of 5.0 points or more",
        "rejected: the worst class lost 28.0 points, 10 allowed (--max-class-drop)",
        "passed: 70.0 % of the images of new classes are right, 60 needed (--min-new); chance "
        "could explain the difference",
    ]
    assert said(Limits(6, 28, 50)) == [
        "passed: the old classes lost 6.0 points, 6 allowed (--max-drop)",
        "passed: the worst class lost 28.0 points, 28 allowed (--max-class-drop)",
        "passed: 70.0 % of the images of new classes are right, 50 needed (--min-new)",
    ]
    assert said(Limits(5), is_first=True)[0].startswith("nothing to judge")


def test_facts_for_programs() -> None:
    facts = json.loads(json.dumps(class_facts(ACCURACY, NAMES)))
    assert [own["has_lost"] for own in facts] == [False, True, False]
    assert facts[1]["p_value"] == 2.0**-14
    for key, right in (("before", 14), ("after", 0)):
        ends = binomtest(right, 50).proportion_ci(method="wilson")
        assert facts[1][f"{key}_interval"] == pytest.approx([ends.low, ends.high], abs=1e-6)
    assert facts[2]["before_interval"] is None
    assert facts[2]["p_value"] is facts[2]["drop_points"] is facts[2]["before"] is None


def test_the_predictor_in_words() -> None:
    chosen = Predictor(
        classifier="nearest_mean", temperature=0.5, calibration_error=(0.101, 0.0204)
    )
    assert predictor_text(chosen) == (
        "nearest mean, temperature 0.50: calibration error 10.1 % before, 2.0 % after"
    )
    assert predictor_text(Predictor(classifier="linear", prior=(1, 2))).startswith(
        "linear with prior; too few held-out images"
    )
