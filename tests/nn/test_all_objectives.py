"""Every function of objectives/ is pure, and has a test with numbers worked by hand beside this."""

import ast
import copy
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from grace.nn.losses import (
    balance,
    classification,
    confusion,
    distillation,
    energy,
    importance,
)

FOLDER = Path(classification.__file__).parent
MODULES = [
    import_module(f"grace.nn.losses.{path.stem}") for path in sorted(FOLDER.glob("[!_]*.py"))
]


def functions(module: ModuleType) -> list[str]:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if not name.startswith("_")]


def test_every_function_is_called_by_a_test_here() -> None:
    here = Path(__file__)
    tests = "".join(path.read_text() for path in here.parent.glob("*.py") if path != here)
    public = [name for module in MODULES for name in functions(module)]
    assert public
    assert [name for name in public if not re.search(rf"\b{name}\(", tests)] == []


LOGITS, OTHERS = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]]), torch.ones(2, 3)
LABELS = torch.tensor([1, 2])
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (classification.cross_entropy, (LOGITS, LABELS, OTHERS[0], OTHERS[0] / 9)),
    (classification.shared_target, (0.3, torch.tensor([True, False, True]), OTHERS[0])),
    (classification.new_class_cross_entropy, (LOGITS, LABELS, 1)),
    (classification.auxiliary_labels, (LABELS, 1)),
    (distillation.logit_distillation, (LOGITS, OTHERS, 2.0)),
    (distillation.soft_distillation, (LOGITS, OTHERS, 2.0)),
    (distillation.balanced_distillation, (LOGITS, OTHERS, torch.tensor([0.5, 1.0, 1.5]), 2.0)),
    (distillation.feature_distillation, (LOGITS, OTHERS)),
    (distillation.distillation_share, (1, 3)),
    (balance.effective_number_weights, (torch.tensor([1, 0, 5]), 0.9)),
    (importance.quadratic_penalty, ({"w": LOGITS}, {"w": OTHERS[:1]}, {"w": OTHERS[1:] * 2})),
    (importance.merged_importance, ({"w": LOGITS[:1]}, {"w": OTHERS}, 0.5)),
    (balance.log_prior, (torch.tensor([1, 0, 5]),)),
    (balance.lost_direction, (torch.tensor([1, 0, 5]),)),
    (balance.lost_evenness, (torch.tensor([1, 0, 5]),)),
    (
        balance.distribution_aware_distillation,
        (LOGITS, OTHERS, torch.tensor([0.5, 0.0, 1.0]), torch.tensor(0.25), 2.0),
    ),
    (balance.accumulated_norms, (OTHERS[:, 0], LOGITS)),
    (
        balance.class_gradient_weights,
        (torch.tensor([2.0, 1.0, 4.0]), torch.tensor([0]), torch.tensor([1, 2]), 0.5),
    ),
    (balance.weighted_rows, (torch.tensor([0.5, 2.0]), LOGITS)),
    (balance.distillation_factor, (LOGITS, OTHERS)),
    (confusion.floored_cross_entropy, (LOGITS, LABELS)),
    (confusion.confusion_weights, (LOGITS, 4.0)),
    (
        confusion.confusion_aware_contrast,
        (torch.ones(2, 3, 1), LABELS, OTHERS[:, 0], 3, 0.1, 0.07),
    ),
    (energy.module_labels, ([2, 1], 2)),
    (energy.output_log_prior, (LOGITS[0], torch.tensor([0, 0, 1]))),
    (energy.energy_share, (LOGITS, OTHERS)),
    (energy.batch_energy, (LOGITS[0], OTHERS[0])),
    (energy.energy_loss, (LOGITS, OTHERS, LABELS, LABELS[:1])),
    (
        energy.fused_rows,
        ((LOGITS, LOGITS[:, 0]),) * 3 + ((LOGITS[0, :2], LOGITS[1, :2]), torch.tensor([0, 1])),
    ),
    (distillation.info_nce, (LOGITS, OTHERS, 0.2)),
    (distillation.guided_transfer, (LOGITS, LOGITS[:, 1:], LABELS, 1, 2.0)),
]


@pytest.mark.parametrize(
    ("function", "given"), CALLS, ids=lambda value: getattr(value, "__name__", "")
)
def test_it_is_pure(function: Any, given: tuple[Any, ...]) -> None:
    """Equal arguments give equal values, and are left as they were; nothing random is drawn."""
    before, drawn = copy.deepcopy(given), torch.random.get_rng_state()
    one, two = function(*given), function(*given)
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    torch.testing.assert_close(given, before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_purity_is_checked_of_all() -> None:
    called = [function.__name__ for function, _ in CALLS]
    assert sorted(called) == sorted(name for module in MODULES for name in functions(module))
