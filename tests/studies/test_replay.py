"""Verdicts from saturations, and which runs serve several pairs of threshold and decay."""

from dataclasses import replace

import pytest

from grace.studies.plan import serves
from support.synthetic_records import MakeRecord

WHOLE = ("compress", "compress", "grow", "compress")
# .65, .624, .599 (grow), .575: c c g c; .64: likewise. With (.65, .90): .65, .585 compress,
# .5265 expands. (.65, .98): .65, .637, .6243, .6118: c c c c.
PAIRS = {(0.65, 0.96): True, (0.65, 0.90): True, (0.64, 0.96): True, (0.65, 0.98): False,
         (0.5, 0.9): False}  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "done", "pairs"),
    [
        (WHOLE, 5, PAIRS),
        # τ = .65, .624, .599 (no room to grow: it decays on), .575: grow.
        (
            ("compress", "compress", "compress (budget)", "grow"),
            5,
            {(0.65, 0.96): True, (0.65, 0.98): False},
        ),
        (WHOLE, 3, dict.fromkeys(PAIRS, False)),  # An unfinished run serves nothing.
    ],
)
def test_a_run_serves_the_pairs_with_its_verdicts(
    verdicts: tuple[str, ...],
    done: int,
    pairs: dict[tuple[float, float], bool],
    make_record: MakeRecord,
) -> None:
    record = make_record(verdicts=("start", *verdicts), done=done)
    tasks = tuple(
        task.model_copy(update={"saturation": saturation})
        for task, saturation in zip(record.tasks, (None, 0.53, 0.58, 0.60, 0.58), strict=False)
    )
    assert {pair: serves(replace(record, tasks=tasks), *pair) for pair in pairs} == pairs
