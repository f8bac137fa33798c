from typing import Any

import pytest
import torch
from torch import Tensor

from grace.data.scenario import Task
from grace.engine.phase import GradientSweep, Phase, Work
from grace.methods.ewc import EWC
from grace.nn.heads import LinearHead
from support.driven import batch, drive, forget, head_of, module_of
from support.tiny_streams import labelled, learner, recipe, task
from support.typed import present, typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

FIRST = {0: 4, 1: 4, 2: 4}


def ewc(**choices: Any) -> EWC:
    return typed(
        EWC, learner(EWC.Settings(**({"base": recipe(), "update": recipe()} | choices))).method
    )


def importance(method: EWC) -> dict[str, Tensor]:
    return present(method.importance.value)


def squares(value: float) -> Any:
    """Answer the Fisher pass with one value everywhere."""

    def answer(item: Work) -> dict[str, Tensor] | None:
        if not isinstance(item, GradientSweep):
            return None
        parts = {f"backbone.0.{n}": p for n, p in module_of(item, "backbone.0").named_parameters()}
        parts |= {f"head.{n}": p for n, p in module_of(item, "head").named_parameters()}
        return {name: torch.full_like(p, value).detach() for name, p in parts.items()}

    return answer


def test_every_parameter_is_estimated_after_every_task_on_its_own_images() -> None:
    method = ewc(base=recipe(batch_size=5), update=recipe(batch_size=7))
    works = [task(1, FIRST, 0), task(2, {3: 6}, 3)]
    for work, size in zip(works, (5, 7), strict=True):
        outcome, items = drive(method, work)
        assert [item.name for item in items] == ["base" if work.number == 1 else "update", "fisher"]
        assert items[1].data is work.data
        assert items[1].batch_size == size
        assert outcome.verdict == ("start" if work.number == 1 else "train")
        named = {f"backbone.0.{n}" for n, _ in method.network.backbone.named_parameters()}
        assert importance(method).keys() == named | {"head.weight", "head.bias"}
    assert importance(method)["head.weight"].shape == (4, 64)
    assert len(method.memory) == 0


def test_the_fisher_pass_compares_all_logits() -> None:
    method = ewc()
    drive(method, task(1, FIRST, 0))
    _, items = drive(method, task(2, {3: 6}, 3))
    head = head_of(items[1])
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]).log1p())
    # Softmax (1, 1, 1, 2)/5: −ln(2/5); among the new logits alone it would be 0.
    losses = items[1].objective(batch(items[1], [3], {"backbone.0": torch.zeros(1, 64)}))
    assert {name: loss.weight for name, loss in losses.items()} == {"classification": 1.0}
    assert float(losses["classification"].value) == pytest.approx(0.9162907, abs=1e-6)


def test_squares_are_limited_and_merged_by_numbers_of_classes() -> None:
    method = ewc()
    drive(method, task(1, FIRST, 0), squares(3e-5))
    assert all(torch.all(value == 3e-5) for value in importance(method).values())
    # Above the limit of 1e-4; α = 3/4: 0.75·3e-5 + 0.25·1e-4 = 4.75e-5, the new row has 1e-4.
    drive(method, task(2, {3: 6}, 3), squares(7.0))
    bias = importance(method)["head.bias"]
    torch.testing.assert_close(bias, torch.tensor([4.75e-5] * 3 + [1e-4]))
    stem = importance(method)["backbone.0.stem.0.weight"]
    torch.testing.assert_close(stem, torch.full_like(stem, 4.75e-5))


def test_forgotten_classes_do_not_count() -> None:
    method = ewc()
    drive(method, task(1, FIRST, 0), squares(4e-5))
    forget(method, [1])
    work = Task(number=2, data=labelled({3: 6}), new_classes=range(3, 4), forgotten=frozenset([1]))
    # α = 2/3 of the classes that are left: (2·4 + 1)/3 · 1e-5.
    drive(method, work, squares(1e-5))
    stem = importance(method)["backbone.0.stem.0.weight"]
    torch.testing.assert_close(stem, torch.full_like(stem, 3e-5))


def update_phase(method: EWC) -> tuple[Phase, LinearHead]:
    """Stop a second task at its phase."""
    item = typed(Phase, next(method.learn(task(2, {3: 6, 4: 6}, 3))))
    assert list(item.parts) == ["backbone.0", "head"]
    return item, head_of(item)


def test_the_penalty_holds_what_the_last_task_left() -> None:
    method = ewc()
    drive(method, task(1, FIRST, 0), squares(2e-5))
    item, head = update_phase(method)
    assert item.data.labels.unique().tolist() == [3, 4]
    probe = batch(item, [3], {"backbone.0": torch.zeros(1, 64)})
    losses = item.objective(probe)
    assert losses["penalty"].weight == 1000.0
    assert float(losses["penalty"].value.detach()) == 0.0
    # 64 old weights moved by ½, the new rows by 9: Ω = ½·64·2e-5·¼ = 1.6e-4.
    with torch.no_grad():
        head.weight[0] += 0.5
        head.weight[3:] += 9
    assert float(item.objective(probe)["penalty"].value.detach()) == pytest.approx(1.6e-4, rel=1e-5)
    # All other parameters count too, one batch-norm scale among them: + ½·2e-5·3².
    with torch.no_grad():
        dict(method.network.backbone.named_parameters())["stem.1.weight"][0] += 3
    assert float(item.objective(probe)["penalty"].value.detach()) == pytest.approx(2.5e-4, rel=1e-5)


def test_later_tasks_compare_their_own_logits() -> None:
    method = ewc()
    drive(method, task(1, FIRST, 0))
    item, head = update_phase(method)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([50.0, 50.0, 50.0, 0.0, 1.0986123]))
    # (0, ln 3) among the new ones: −ln ¼.
    losses = item.objective(batch(item, [3], {"backbone.0": torch.zeros(1, 64)}))
    assert float(losses["classification"].value.detach()) == pytest.approx(1.3862944, abs=1e-6)
