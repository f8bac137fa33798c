"""What an earlier grace wrote, unpacked, and the tiny network that it was written with.

The archives were made by ``write_earlier_files.py``, which says on which commit. ``written.tar.xz``
holds::

    images/{train,test}/<class>/*.png   six classes of 8-pixel images, twelve and two of each
    learners/<variant>/                 a home after two tasks, one of every method
    learners/<variant>.json             what it says of the test images; how a third task went
    unfinished/<variant>/               a home whose second update was killed in its midst
    unfinished/<variant>-straight/      the same home where that update was not killed
    run/, run-straight/                 a run killed in its second task of three; one that was not

and ``networks.tar.xz``, of 130 megabytes when it is unpacked::

    <name>-<method>/                    a home with a network that people use, whole or cut
    <name>-<method>.json                its scores of the test images

Only what tests and users can reach from outside is used here, so that it holds for grace as it
becomes. Two places know its insides and are marked CHANGE.
"""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from grace.learner.learner import Learner
from grace.nn.backbone import Backbone
from grace.settings.experiment import BackboneSettings

HERE = Path(__file__).parent
WRITTEN = HERE / "written.tar.xz"
WHOLE_NETWORKS = HERE / "networks.tar.xz"
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")
TASKS = (NAMES[:2], NAMES[2:4], NAMES[4:])
VARIANTS = (
    "finetune",
    "replay",
    "icarl",
    "wa",
    "ewc",
    "der",
    "foster",
    "memo",
    "joint",
    "grace-compressed",
    "grace-grown",
)
UNFINISHED = ("grace", "ewc", "foster", "memo", "icarl")
NETWORKS = {"resnet20": "resnet20", "resnet18": "resnet18", "timm": "timm/test_resnet"}
"""Their names in grace, by their names here. MEMO cuts them, finetune leaves them whole."""
SCORES = 1e-5
"""How far scores of loaded weights may lie apart on another processor."""
TRAINED = 1e-4
"""How far weights and scores may lie apart that were trained on another processor.

torch's plainest kernels, in place of those of the processor that wrote the files, move them by less
than 1e-5; momenta that are lost move scores by 0.09, an importance that is lost by 0.004.
"""


@final
class TinyBackbone(Backbone):
    """A stem and two stages of 4 and 8 channels: 1,316 parameters, 8 features.

    The names in its state are those that the files hold: they must stay.
    """

    def __init__(self, num_channels: int, seed: int, *purpose: str | int) -> None:
        super().__init__()
        self.name = "tiny"
        self.feature_dim = 8
        self.map_channels = (4, 4, 8)
        self.stem = _convolution(num_channels, 4)
        self.stage1 = nn.Sequential(_convolution(4, 4), _convolution(4, 4))
        self.stage2 = nn.Sequential(_convolution(4, 8, stride=2), _convolution(8, 8))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        # Of its own, so that no change of grace's draws changes what is fresh here.
        text = repr((seed, *purpose)).encode()
        draws = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7]))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                weight = torch.randn(module.weight.shape, generator=draws, device="cpu")
                module.weight.data.copy_(weight * (2 / (9 * module.out_channels)) ** 0.5)

    # The stages' names in a trunk's state are 0.* (stem) and 1.* (stage 1), in a branch's
    # stage.0.* (stage 2).
    @override
    def stages(self) -> tuple[nn.Module, ...]:
        return self.stem, self.stage1, self.stage2

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        first = self.stem(images)
        second = self.stage1(first)
        return first, second, self.stage2(second)


def _convolution(in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU())


def _build(_: BackboneSettings, num_channels: int, seed: int, *purpose: str | int) -> TinyBackbone:
    return TinyBackbone(num_channels, seed, *purpose)


def use_tiny_backbones(patch: pytest.MonkeyPatch) -> None:
    """Let whatever backbone is named be a ``TinyBackbone``."""
    # CHANGE where grace builds its backbones elsewhere.
    patch.setattr("grace.methods.module_factory.build_backbone", _build)


@pytest.fixture(scope="module")
def tiny_network() -> Iterator[None]:
    """``TinyBackbone`` instead of the backbones that the files name."""
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_backbones(patch)
        yield


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, unpacked; tests must not change them."""
    place = tmp_path_factory.mktemp("earlier")
    unpack(WRITTEN, place)
    return place


def unpack(path: Path, place: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(place, filter="data")


def copied(home: Path, place: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(home, place / home.name))


RENAMED = {"base": "start", "update": "train"}


def renamed(table: dict[str, Any]) -> dict[str, Any]:
    """A JSON object as it was written, but with the verdict's word of today."""
    verdict = table.get("verdict")
    return table if verdict is None else table | {"verdict": RENAMED.get(verdict, verdict)}


def facts(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), object_hook=renamed)


def pictures(images: Path, part: str, names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Images of some classes, uint8 (N, 3, 8, 8), class by class, and the class of each."""
    paths = [path for name in names for path in sorted((images / part / name).iterdir())]
    return torch.stack([_pixels(path) for path in paths]), [path.parent.name for path in paths]


@cache
def _pixels(path: Path) -> Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())


def taught(images: Path, learner: Learner, number: int) -> Any:
    """Teach a learner its ``number``-th task of two classes; tell what the update says."""
    pixels, labels = pictures(images, "train", TASKS[number - 1])
    return learner.update(pixels, labels)


def loaded(images: Path, home: Path, version: int | None = None) -> Learner:
    """A saved learner; joint training, whose images are not saved, is given them back."""
    learner = Learner.load(home, version)
    if learner.settings.method.name == "joint":
        known = learner.class_names
        learner.recall(*pictures(images, "train", [name for name in NAMES if name in known]))
    return learner


def said(images: Path, learner: Learner) -> dict[str, Any]:
    """What a learner says of the test images, as JSON holds it."""
    asked, _ = pictures(images, "test", NAMES)
    return {name: found.tolist() for name, found in learner.scores(asked).items()}


def told(update: Any, learner: Learner) -> dict[str, Any]:
    """What an update decided, and what it left."""
    accuracy, outcome = update.accuracy, update.outcome
    return {
        "verdict": outcome.verdict,
        "saturation": outcome.saturation,
        "threshold": outcome.threshold,
        "merge_weight": outcome.merge_weight,
        "accuracies": [accuracy.old_before, accuracy.old_after, accuracy.new_after],
        "num_backbones": learner.size().num_backbones,
        "num_parameters": learner.size().num_parameters,
        "num_exemplars": update.num_exemplars,
        "class_names": learner.class_names,
    }


def weights(learner: Learner) -> Mapping[str, Tensor]:
    """Weights and buffers of a learner's network."""
    return learner.method.network.state_dict()


def refuse_unlike_scores(
    found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float
) -> None:
    """Compare the scores of every predictor; the primary one is the first of both."""
    assert next(iter(found)) == next(iter(expected))
    for name, scores in expected.items():
        one, two = torch.tensor(found[name]), torch.tensor(scores)
        torch.testing.assert_close(one, two, rtol=0, atol=tolerance, msg=lambda m, n=name: n + m)


def refuse_unlike(found: Any, expected: Any, tolerance: float = TRAINED) -> None:
    """Compare numbers and words, however deep; ``found`` may name more than there was."""
    if isinstance(expected, Mapping):
        assert found.keys() >= expected.keys(), expected.keys() - found.keys()
        for name in expected:
            # Numbers that the version of then did not take yet are none in its files.
            if expected[name] is not None or name not in {"task_aware", "reason"}:
                refuse_unlike(found[name], expected[name], tolerance)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            refuse_unlike(one, two, tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=tolerance)
    else:
        assert found == expected
