"""Tiny streams that can be learnt: 8-pixel images whose class is the place of a bright patch."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from grace.base.randomness import generator
from grace.data.images import Dataset, LabelledImages, TensorImages
from grace.data.scenario import Task
from grace.engine.phase import Work
from grace.engine.progress import Observer
from grace.learner.learner import Learner, UpdateRecord
from grace.learner.model import Model
from grace.learner.store import ModelStore
from grace.nn import expandable
from grace.nn.resnets import CifarResNet, _draw_weights
from grace.nn.weights import build_backbone
from grace.settings.experiment import (
    BackboneSettings,
    DataSettings,
    EngineSettings,
    ExperimentSettings,
    MemorySettings,
    ScenarioSettings,
    SeedSettings,
)
from grace.settings.recipe import Recipe

SIZE = 8
_traced_pairs = expandable._conv_norm_pairs


def pictures(index: int, count: int, channels: int = 3, seed: int = 0) -> Tensor:
    """Images of one class, uint8: one quadrant bright, or from class 4 on one quadrant dark."""
    noise = torch.randint(
        0, 80, (count, channels, SIZE, SIZE), generator=generator(seed, "picture", index)
    )
    row, column = divmod(index % 4, 2)
    noise[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 150
    return (noise if index < 4 else 255 - noise).to(torch.uint8)


def labelled(counts: Mapping[int, int], channels: int = 3, seed: int = 0) -> LabelledImages:
    """So many images of each class index, class by class."""
    pixels = [pictures(index, count, channels, seed) for index, count in counts.items()]
    labels = [torch.full((count,), index) for index, count in counts.items()]
    return LabelledImages(TensorImages(torch.cat(pixels)), torch.cat(labels))


def class_names(data: LabelledImages) -> list[str]:
    """The name of each image's class."""
    return [f"class {int(label)}" for label in data.labels]


def learn(made: Learner, counts: Mapping[int, int]) -> UpdateRecord:
    """Teach a learner so many images of each class."""
    data = labelled(counts)
    return made.update(data.images, class_names(data))


def task(
    number: int, counts: Mapping[int, int], num_old: int, *, is_last: bool = False, seed: int = 0
) -> Task:
    """A task by hand: indices from ``num_old`` on are new."""
    num_classes = max(num_old, max(counts) + 1)
    return Task(
        number=number,
        data=labelled(counts, seed=seed),
        new_classes=range(num_old, num_classes),
        is_last=is_last,
    )


def dataset(
    num_classes: int, train: int = 10, test: int = 4, channels: int = 3, name: str = "quadrants"
) -> Dataset:
    """A whole data set of such images."""
    return Dataset(
        name=name,
        train=labelled(dict.fromkeys(range(num_classes), train), channels),
        test=labelled(dict.fromkeys(range(num_classes), test), channels, seed=1),
        class_names=[f"label {label}" for label in range(num_classes)],
        mean=(0.4,) * channels,
        std=(0.3,) * channels,
    )


def recipe(epochs: int = 1, lr: float = 0.05, batch_size: int = 16) -> Recipe:
    """A short recipe."""
    return Recipe(epochs=epochs, batch_size=batch_size, lr=lr)


def settings(method: Any, **changes: Any) -> ExperimentSettings:
    """Settings of a tiny experiment on one CPU thread; ``changes`` replace whole sections."""
    sections: dict[str, Any] = {
        "name": "tiny",
        "data": DataSettings(augmentation="shift"),
        "scenario": ScenarioSettings(increment=2),
        "memory": MemorySettings(size=13),
        "backbone": BackboneSettings(name="resnet20"),
        "seeds": SeedSettings(),
        "engine": EngineSettings(device="cpu", compile=False, threads=1),
    }
    return ExperimentSettings(method=method, **(sections | changes))


def learner(method: Any, channels: int = 3, **changes: Any) -> Learner:
    """A learner of tiny images."""
    chosen = settings(method, **changes)
    return Learner(Model(chosen, (channels, SIZE, SIZE), (0.4,) * channels, (0.3,) * channels))


def create_home(method: Any, home: Path) -> None:
    """Create the home of a learner of tiny images that knows nothing."""
    ModelStore.create(home, learner(method).model.creation)


@final
class _Watch(Observer):
    """Hands on what it hears of every phase and sweep."""

    def __init__(self, before: Callable[[Work], None], after: Callable[[Work, Any], None]) -> None:
        self._before = before
        self._after = after

    @override
    def work_started(self, work: Work) -> None:
        self._before(work)

    @override
    def work_finished(self, work: Work, result: Any) -> None:
        self._after(work, result)


def watch(
    learner: Learner,
    before: Callable[[Work], None] = lambda item: None,
    after: Callable[[Work, Any], None] = lambda item, result: None,
) -> None:
    """Hear of every phase and sweep of a learner's updates, before and after it is done."""
    learner.model.trainer.observers.append(_Watch(before, after))


def state(module: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Whether two states are equal bit for bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@cache
def _blank(num_channels: int) -> CifarResNet:
    return CifarResNet(8, num_channels, generator(0))


def _resnet8(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> torch.nn.Module:
    if settings.name.startswith("timm/"):
        return build_backbone(settings, num_channels, seed, *purpose)
    draws = generator(seed, *purpose)
    if torch.get_default_device().type == "meta":
        return CifarResNet(8, num_channels, draws)
    # Modules first draw weights of their own, which takes as long as all the rest.
    made = copied_module(_blank(num_channels), {})
    _draw_weights(made, draws)
    return made


_PAIRS: dict[object, list[tuple[str, str]]] = {}


def pairs_to_fold(module: torch.nn.Module) -> list[tuple[str, str]]:
    """What ``folded`` folds, traced once for all networks of equal parts.

    Tracing takes a tenth of the time of a tiny run; ``tests/nn/test_folding.py`` has it.
    """
    parts = tuple((name, type(own)) for name, own in module.named_modules(remove_duplicate=False))
    if parts not in _PAIRS:
        _PAIRS[parts] = _traced_pairs(module)
    return _PAIRS[parts]


def copied_module(module: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
    """``copy.deepcopy`` of a module, without its detour over ``__reduce_ex__`` for every hook.

    That takes an eighth of the time of a tiny run; networks of other tests are copied by Python.
    """
    copied = memo[id(module)] = type(module).__new__(type(module))
    for name, value in vars(module).items():
        if isinstance(value, dict):
            own = type(value)()
            for key, each in value.items():
                own[key] = _copied(each, memo)
        else:
            own = _copied(value, memo)
        copied.__dict__[name] = own
    return copied


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.nn.Module) and id(value) not in memo:
        return copied_module(value, memo)
    if type(value) is Tensor and id(value) not in memo and not value.requires_grad:
        memo[id(value)] = value.clone()
    return copy.deepcopy(value, memo)


@pytest.fixture(scope="module")
def tiny_backbones() -> Iterator[None]:
    """ResNet-8 instead of the registered depths: the same code, a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grace.methods.module_factory.build_backbone", _resnet8)
        patch.setattr(expandable, "_conv_norm_pairs", pairs_to_fold)
        patch.setattr(torch.nn.Module, "__deepcopy__", copied_module, raising=False)
        for device in (torch.cuda, torch.xpu):
            if not device.is_available():
                # It notes its caller's whole stack, for when there is one.
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        yield
