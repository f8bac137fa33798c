"""A learner of letterboxed images: what it learns, predicts and exports is prepared alike."""

import runpy
from pathlib import Path

import pytest
import torch
from PIL import Image

from grace.base.errors import GraceError
from grace.data.decoders import read_pixels
from grace.data.decoding import Reading, letterboxed
from grace.data.images import TensorImages, image_keys
from grace.learner.learn import learn
from grace.learner.learner import Learner
from grace.learner.prediction import predict_files
from support.picture_folders import picture

OVERRIDES = (
    "data.fit=letterbox", "data.image_size=16", "data.augmentation=shift", "method=replay",
    "method.base.epochs=1", "method.update.epochs=1", "memory.validation=0",
    "backbone.name=resnet20", "engine.threads=1", "engine.device=cpu",
)  # fmt: skip


def wide(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(4):
            image = picture(name, number, 32).crop((0, 0, 32, 20 + number))
            image.save(root / name / f"{number}.png")
    return root


@pytest.mark.usefixtures("tiny_backbones")
def test_learning_and_predicting(tmp_path: Path) -> None:
    images, more = wide(tmp_path / "images", "ant", "bee"), wide(tmp_path / "more", "cat")
    learn(tmp_path / "m", images, OVERRIDES, experiment="folder")
    learn(tmp_path / "m", more)
    with pytest.raises(GraceError, match=r"data\.fit letterbox.* were made squares"):
        learn(tmp_path / "m", images, ["data.fit=crop"])
    learner = Learner.load(tmp_path / "m")
    paths, reading = sorted(tmp_path.glob("*/*/*.png")), Reading(3, 16, fit="letterbox")
    pixels = torch.stack([torch.from_numpy(read_pixels(path, reading)) for path in paths])
    wanted = pixels.permute(0, 3, 1, 2).contiguous()
    kept = learner.method.memory.data()
    assert set(image_keys(kept.images)) == set(image_keys(TensorImages(wanted)))
    likely = learner.predict_proba(wanted).max(dim=1).values
    guesses = list(predict_files(learner.answerer(), paths))
    found = torch.tensor([own.guesses[0].probability for own in guesses])
    assert torch.allclose(found, likely, atol=1e-5)
    # Python's paths and PIL images are prepared in the same way.
    for given in (paths, [Image.open(path).convert("RGB") for path in paths]):
        for one, other in zip(learner.recognise(given), learner.recognise(wanted), strict=True):
            assert torch.allclose(one, other, atol=1e-4)


def test_the_example_for_exported_files_has_the_same_rule() -> None:
    pytest.importorskip("onnxruntime")
    example = Path(__file__).parents[2] / "examples" / "predict_with_onnx.py"
    squared = runpy.run_path(str(example))["letterboxed"]
    for size in ((32, 20), (7, 31), (16, 16), (100, 1)):
        image = picture("ant", 1, 100).crop((0, 0, *size))
        assert squared(image, 16).tobytes() == letterboxed(image, 16).tobytes()
