"""Naming what image files show: in order, in batches, whatever some files are like; evaluating."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from grace.data.decoders import Pixels
from grace.learner import prediction
from grace.learner.evaluate import Evaluated, ImageResult
from grace.learner.learner import Learner
from grace.learner.prediction import predict_files
from grace.methods.finetune import Finetune
from support.saved_learners import saved as saved
from support.tiny_streams import class_names, labelled, learner, pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@pytest.fixture(scope="module")
def pets(saved: Path) -> Learner:
    return Learner.load(saved)


def write(path: Path, image: Tensor) -> Path:
    """Write an image (C, H, W) losslessly."""
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[Path], Tensor]:
    """Five files and what is in them, classes mixed."""
    images = torch.cat([pictures(index, 1, seed=5) for index in (4, 0, 3, 1, 0)])
    return [write(tmp_path / f"{i}.png", image) for i, image in enumerate(images)], images


@pytest.mark.parametrize("batch", [2, 256])
def test_files_are_named_as_their_pixels_are(
    batch: int, pets: Learner, files: tuple[list[Path], Tensor]
) -> None:
    paths, images = files
    expected, (_, familiar) = pets.predict_proba(images), pets.recognise(images)
    answers = list(predict_files(pets.answerer(), paths, top=2, batch=batch))
    assert [told.path for told in answers] == paths
    assert len({told.guesses[0].class_name for told in answers}) > 1
    for told, own, known in zip(answers, expected, familiar, strict=True):
        ranked = sorted(range(5), key=lambda index: -float(own[index]))[:2]
        assert [guess.index for guess in told.guesses] == ranked
        assert [guess.class_name for guess in told.guesses] == [pets.class_names[i] for i in ranked]
        shares = [guess.probability for guess in told.guesses]
        assert shares == pytest.approx([float(own[index]) for index in ranked], abs=1e-5)
        assert told.familiarity == pytest.approx(float(known), abs=1e-4)
        assert told.problem is None


def test_files_are_read_batch_by_batch(
    pets: Learner, files: tuple[list[Path], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    read = prediction.read_pixels

    def noted(path: Path, *given: Any, **others: Any) -> Pixels:
        opened.append(path)
        return read(path, *given, **others)

    monkeypatch.setattr(prediction, "read_pixels", noted)
    told = predict_files(pets.answerer(), files[0] * 20, batch=3)
    assert [next(told).path for _ in range(4)] == files[0][:4]
    assert len(opened) == 6
    # A batch of pixels has a limit too.
    monkeypatch.setattr(prediction, "BATCH_BYTES", 5 * 3 * 8 * 8)
    opened.clear()
    next(predict_files(pets.answerer(), files[0] * 20))
    assert len(opened) == 5
    assert list(predict_files(pets.answerer(), [])) == []


def test_forgotten_classes_never_appear_and_equal_ones_keep_their_order(
    saved: Path, files: tuple[list[Path], Tensor]
) -> None:
    torn = Learner.load(saved)
    head = torn.method.network.head
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    for told in predict_files(torn.answerer(), files[0], top=99):
        assert [guess.index for guess in told.guesses] == [0, 1, 3, 4]
        assert [guess.probability for guess in told.guesses] == [0.25] * 4


def test_other_sizes_are_brought_to_the_learners_square(pets: Learner, tmp_path: Path) -> None:
    grey = torch.full((3, 8, 8), 90, dtype=torch.uint8)
    wide = torch.cat([grey[:, :, :4] + 50, pictures(0, 1)[0], grey[:, :, :4]], dim=2)
    large = write(tmp_path / "large.png", torch.full((3, 40, 30), 90, dtype=torch.uint8))
    # One colour stays one colour; of the wide one the middle is taken.
    expected = pets.predict_proba(torch.stack([grey, pictures(0, 1)[0]]))
    paths = [large, write(tmp_path / "wide.png", wide)]
    for told, own in zip(predict_files(pets.answerer(), paths, top=4), expected, strict=True):
        for guess in told.guesses:
            assert guess.probability == pytest.approx(float(own[guess.index]), abs=1e-6)


def test_files_that_cannot_be_read_say_why(
    pets: Learner, files: tuple[list[Path], Tensor], tmp_path: Path
) -> None:
    paths, images = files
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes(paths[0].read_bytes()[:60])
    bad = [tmp_path / f"{name}.png" for name in ("empty", "text", "cut", "absent")]
    mixed = [bad[0], paths[0], bad[1], bad[2], paths[1], bad[3]]
    told = list(predict_files(pets.answerer(), mixed, batch=2))
    assert [own.path for own in told] == mixed
    readable = [own.guesses[0].class_name for own in told if own.problem is None]
    assert readable == pets.predict(images[:2])
    for own in told:
        if own.problem is not None:
            assert (own.guesses, own.familiarity) == ((), None)
            assert f"'{own.path}'" in own.problem
            assert "\n" not in own.problem
    assert "the file is empty" in str(told[0].problem)


def test_without_a_square_images_must_have_the_size(tmp_path: Path) -> None:
    chosen = settings(Finetune.Settings(base=recipe(), update=recipe()))
    made = Learner.create(chosen, shape=(3, 8, 16), mean=(0.4,) * 3, std=(0.3,) * 3)
    with pytest.raises(ValueError, match="nothing has been learnt yet"):
        made.answerer()
    noise = torch.randint(0, 255, (8, 3, 8, 16), generator=torch.Generator().manual_seed(0))
    images = noise.to(torch.uint8)
    made.update(images, ["cat", "dog"] * 4)
    turned = write(tmp_path / "turned.png", images[0].transpose(1, 2).contiguous())
    paths = [write(tmp_path / "right.png", images[0]), turned]
    one, other = predict_files(made.answerer(), paths)
    assert one.guesses[0].class_name == made.predict(images[:1])[0]
    assert other.problem == (
        f"image '{turned}' has 8×16 pixels, this learner takes 16×8: resize it"
    )


def test_a_grey_learner_sees_colours_as_grey(tmp_path: Path) -> None:
    made = learner(Finetune.Settings(base=recipe(), update=recipe()), channels=1)
    data = labelled({0: 6, 1: 6}, channels=1)
    made.update(data.images, class_names(data))
    image = pictures(1, 1, channels=1)
    path = write(tmp_path / "colour.png", image[0].expand(3, -1, -1).contiguous())
    (told,) = predict_files(made.answerer(), [path])
    assert told.guesses[0].probability == float(made.predict_proba(image).max())


def test_threads_that_read_at_once_share_their_decoders(
    files: tuple[list[Path], Tensor],
) -> None:
    """Each once made decoders of its own, whose processes nobody ended."""
    script = (
        "import threading\nfrom pathlib import Path\nfrom grace.data import decoders\n"
        "made = []\nfirst = decoders._Decoders.__init__\n"
        "def noted(self):\n    made.append(self)\n    first(self)\n"
        "decoders._Decoders.__init__ = noted\nstart = threading.Barrier(4)\n"
        f"path = Path({str(files[0][0])!r})\n"
        "def read():\n    start.wait()\n    decoders.read_pixels(path, decoders.Reading(3, 8))\n"
        "threads = [threading.Thread(target=read) for _ in range(4)]\n"
        "[own.start() for own in threads]\n[own.join() for own in threads]\nprint(len(made))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"


def test_the_numbers_of_an_evaluation_by_hand() -> None:
    said = (
        ("ant", "ant", 0.9), ("ant", "bee", 0.8), ("ant", "bee", 0.6), ("bee", "bee", 1.0),
        ("bee", "bee", 0.7), ("cat", "ant", 0.95), ("cat", "cat", 0.5), ("cat", "cat", 0.5),
    )  # fmt: skip
    results = [ImageResult(Path(f"{number}.png"), *own) for number, own in enumerate(said)]
    found = Evaluated(model=Path("m"), version=3, images=Path("images"), results=results)
    facts = found.facts
    assert (facts["num_images"], facts["num_right"], facts["accuracy"]) == (8, 5, 5 / 8)
    assert found.accuracy == 5 / 8
    # Wilson's interval of 5 of 8.
    assert facts["accuracy_interval"] == pytest.approx([0.3057, 0.8632], abs=1e-4)
    classes = [(own["name"], own["num_right"], own["num_images"]) for own in facts["classes"]]
    assert classes == [("ant", 1, 3), ("cat", 2, 3), ("bee", 2, 2)]
    assert facts["confusions"] == [
        {"class": "ant", "predicted": "bee", "num_images": 2},
        {"class": "cat", "predicted": "ant", "num_images": 1},
    ]
    assert [own.probability for own in found.mistakes] == [0.95, 0.8, 0.6]
    # Bins of 1/15: (0.5, 0.5) 2 right, 0.6 wrong, 0.7 right, 0.8 wrong, 0.9 right, 0.95 wrong and
    # 1.0 right share the last one.
    apart = (2 - 1.0) + 0.6 + 0.3 + 0.8 + 0.1 + abs(1 - 1.95)
    assert facts["calibration_error"] == pytest.approx(apart / 8)
