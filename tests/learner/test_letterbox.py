"""A learner of letterboxed images: what it learns, predicts and exports is prepared alike."""

import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

from grace.base.errors import GraceError
from grace.data.decoders import read_pixels
from grace.data.decoding import Reading, letterboxed
from grace.data.images import TensorImages, image_keys
from grace.learner.learn import learn as learn_folder
from grace.learner.learner import Learner
from grace.learner.prediction import predict_files
from support.picture_folders import picture

pytestmark = pytest.mark.usefixtures("tiny_backbones")

ROOT = Path(__file__).parents[2]
OVERRIDES = (
    "data.fit=letterbox",
    "data.image_size=16",
    "data.augmentation=shift",
    "method=replay",
    "method.base.epochs=1",
    "method.update.epochs=1",
    "memory.validation=0",
    "backbone.name=resnet20",
    "engine.threads=1",
    "engine.device=cpu",
)


def wide(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(4):
            image = picture(name, number, 32).crop((0, 0, 32, 20 + number))
            image.save(root / name / f"{number}.png")
    return root


def learn(model: Path, images: Path, *overrides: str) -> None:
    experiment = None if (model / "model.json").exists() else "folder"
    learn_folder(model, images, overrides, experiment=experiment)


def pixels(paths: Sequence[Path]) -> torch.Tensor:
    found = [torch.from_numpy(read_pixels(path, Reading(3, 16, fit="letterbox"))) for path in paths]
    return torch.stack(found).permute(0, 3, 1, 2).contiguous()


def test_learning_predicting_and_exporting(tmp_path: Path) -> None:
    images, model = wide(tmp_path / "images", "ant", "bee"), tmp_path / "m"
    learn(model, images, *OVERRIDES)
    learn(model, wide(tmp_path / "more", "cat"))
    learner = Learner.load(model)
    assert learner.settings.data.fit == "letterbox"
    paths = sorted(images.glob("*/*.png")) + sorted((tmp_path / "more").glob("*/*.png"))
    wanted = pixels(paths)
    kept = learner.method.memory.data()
    assert set(image_keys(kept.images)) == set(image_keys(TensorImages(wanted)))
    guesses = list(predict_files(learner.answerer(), paths))
    likely = learner.predict_proba(wanted).max(dim=1).values
    found = torch.tensor([own.guesses[0].probability for own in guesses])
    assert torch.allclose(found, likely, atol=1e-5)
    # Python's paths and PIL images are prepared in the same way.
    images_of = [Image.open(path).convert("RGB") for path in paths]
    for given in (paths, images_of):
        assert torch.allclose(learner.predict_proba(given).max(dim=1).values, likely, atol=1e-5)
        for one, other in zip(learner.recognise(given), learner.recognise(wanted), strict=True):
            assert torch.allclose(one, other, atol=1e-4)


def test_it_stays_with_a_learner(tmp_path: Path) -> None:
    images, model = wide(tmp_path / "images", "ant", "bee"), tmp_path / "m"
    learn(model, images, *OVERRIDES)
    with pytest.raises(GraceError, match=r"data\.fit letterbox.* were made squares"):
        learn(model, wide(tmp_path / "more", "cat"), "data.fit=crop")


def test_the_example_for_exported_files_has_the_same_rule() -> None:
    pytest.importorskip("onnxruntime")
    example = runpy.run_path(str(ROOT / "examples" / "predict_with_onnx.py"))["letterboxed"]
    for size in ((32, 20), (7, 31), (16, 16), (100, 1)):
        image = picture("ant", 1, 100).crop((0, 0, *size))
        assert example(image, 16).tobytes() == letterboxed(image, 16).tobytes()
