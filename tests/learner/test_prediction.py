"""Naming what image files show: in order, in batches, whatever some files are like."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from grace.data.decoders import Pixels
from grace.learner import prediction
from grace.learner.learner import Learner
from grace.learner.prediction import FilePredictor
from grace.methods.finetune import Finetune
from support.saved_learners import saved as saved
from support.tiny_streams import class_names, labelled, learner, pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@pytest.fixture(scope="module")
def pets(saved: Path) -> Learner:
    return Learner.load(saved)


def predictor_of(learner: Learner, **options: Any) -> FilePredictor:
    return FilePredictor(learner.answerer(), **options)


def write(path: Path, image: Tensor) -> Path:
    """Write an image (C, H, W) losslessly."""
    pixels = image.permute(1, 2, 0).numpy()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[Path], Tensor]:
    """Five files and what is in them, classes mixed."""
    images = torch.cat([pictures(index, 1, seed=5) for index in (4, 0, 3, 1, 0)])
    return [write(tmp_path / f"{i}.png", image) for i, image in enumerate(images)], images


def test_files_are_told_what_their_pixels_are(
    pets: Learner, files: tuple[list[Path], Tensor]
) -> None:
    paths, images = files
    (batch,) = predictor_of(pets, top=2).predict(paths)
    expected = pets.predict_proba(images)
    assert [told.path for told in batch] == paths
    assert [told.guesses[0].class_name for told in batch] == pets.predict(images)
    assert len({told.guesses[0].class_name for told in batch}) > 1
    for told, own in zip(batch, expected, strict=True):
        ranked = sorted(range(5), key=lambda index: -float(own[index]))[:2]
        assert [guess.index for guess in told.guesses] == ranked
        assert [guess.probability for guess in told.guesses] == [float(own[i]) for i in ranked]
        assert [guess.class_name for guess in told.guesses] == [pets.class_names[i] for i in ranked]
        assert (told.is_unknown, told.problem) == (None, None)


def test_batches_change_nothing_and_keep_the_order(
    pets: Learner, files: tuple[list[Path], Tensor]
) -> None:
    paths, _ = files
    (whole,) = predictor_of(pets).predict(paths)
    batches = list(predictor_of(pets, batch_size=2).predict(paths))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    told = [own for batch in batches for own in batch]
    assert [own.path for own in told] == paths
    for one, other in zip(told, whole, strict=True):
        assert one.guesses[0].index == other.guesses[0].index
        assert one.guesses[0].probability == pytest.approx(other.guesses[0].probability, abs=1e-5)


def test_at_most_two_batches_are_read_ahead(
    pets: Learner, files: tuple[list[Path], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = files
    opened: list[Path] = []
    read = prediction.read_pixels

    def noted(path: Path, channels: int, size: int | None, **others: Any) -> Pixels:
        opened.append(path)
        return read(path, 1 if channels == 1 else 3, size, **others)

    monkeypatch.setattr(prediction, "read_pixels", noted)
    batches = predictor_of(pets, batch_size=1).predict(paths * 20)
    next(batches)
    assert len(opened) <= 2
    batches.close()
    assert len(opened) <= 2


def test_no_files_give_no_batches(pets: Learner) -> None:
    assert list(predictor_of(pets).predict([])) == []


def test_forgotten_classes_never_appear(pets: Learner, files: tuple[list[Path], Tensor]) -> None:
    paths, _ = files
    predictor = predictor_of(pets, top=99)
    assert predictor.top == 4
    for told in next(predictor.predict(paths)):
        assert sorted(guess.index for guess in told.guesses) == [0, 1, 3, 4]
        assert sum(guess.probability for guess in told.guesses) == pytest.approx(1, abs=1e-5)


def test_equal_probabilities_are_told_in_the_order_of_the_classes(
    saved: Path, files: tuple[list[Path], Tensor]
) -> None:
    torn = Learner.load(saved)
    head = torn.method.network.head
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    for told in next(predictor_of(torn, top=4).predict(files[0])):
        assert [guess.index for guess in told.guesses] == [0, 1, 3, 4]
        assert [guess.probability for guess in told.guesses] == [0.25] * 4


def test_other_sizes_are_brought_to_the_learners_square(pets: Learner, tmp_path: Path) -> None:
    grey = torch.full((3, 8, 8), 90, dtype=torch.uint8)
    wide = torch.cat([grey[:, :, :4] + 50, pictures(0, 1)[0], grey[:, :, :4]], dim=2)
    paths = [
        write(tmp_path / "large.png", torch.full((3, 40, 30), 90, dtype=torch.uint8)),
        write(tmp_path / "wide.png", wide),
    ]
    # One colour stays one colour; of the wide one the middle is taken.
    expected = pets.predict_proba(torch.stack([grey, pictures(0, 1)[0]]))
    (batch,) = predictor_of(pets, top=4).predict(paths)
    for told, own in zip(batch, expected, strict=True):
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
    told = [own for batch in predictor_of(pets, batch_size=2).predict(mixed) for own in batch]
    assert [own.path for own in told] == mixed
    readable = [own for own in told if own.problem is None]
    assert [own.path for own in readable] == paths[:2]
    assert [own.guesses[0].class_name for own in readable] == pets.predict(images[:2])
    for own in told:
        if own.problem is not None:
            assert own.guesses == ()
            assert f"'{own.path}'" in own.problem
            assert "data.skip_unreadable" not in own.problem
            assert "\n" not in own.problem
    assert "the file is empty" in str(told[0].problem)


def test_decoders_warnings_are_not_passed_on(
    pets: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    large = write(tmp_path / "large.png", torch.zeros(3, 11, 11, dtype=torch.uint8))
    # Above this limit and below its double PIL warns.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    warnings.simplefilter("always")
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(large).close()
    recwarn.clear()
    (batch,) = predictor_of(pets).predict([large])
    assert "11×11 pixels are too many" in str(batch[0].problem)
    assert len(recwarn) == 0


def test_without_a_square_images_must_have_the_size(tmp_path: Path) -> None:
    chosen = settings(Finetune.Settings(base=recipe(), update=recipe()))
    made = Learner.create(chosen, shape=(3, 8, 16), mean=(0.4,) * 3, std=(0.3,) * 3)
    noise = torch.randint(0, 255, (8, 3, 8, 16), generator=torch.Generator().manual_seed(0))
    images = noise.to(torch.uint8)
    made.update(images, ["cat", "dog"] * 4)
    paths = [
        write(tmp_path / "right.png", images[0]),
        write(tmp_path / "turned.png", images[0].transpose(1, 2).contiguous()),
    ]
    (batch,) = predictor_of(made).predict(paths)
    assert batch[0].guesses[0].class_name == made.predict(images[:1])[0]
    assert batch[1].problem == (
        f"image '{paths[1]}' has 8×16 pixels, this learner takes 16×8: resize it"
    )


def test_a_grey_learner_sees_colours_as_grey(tmp_path: Path) -> None:
    made = learner(Finetune.Settings(base=recipe(), update=recipe()), channels=1)
    data = labelled({0: 6, 1: 6}, channels=1)
    made.update(data.images, class_names(data))
    image = pictures(1, 1, channels=1)
    path = write(tmp_path / "colour.png", image[0].expand(3, -1, -1).contiguous())
    (batch,) = predictor_of(made).predict([path])
    assert batch[0].guesses[0].probability == float(made.predict_proba(image).max())


def test_unknown_images_are_told_at_the_promised_rate(
    pets: Learner, files: tuple[list[Path], Tensor], tmp_path: Path
) -> None:
    held_out = pets.held_out.data()
    assert held_out is not None
    live = [0, 1, 3, 4]
    paths, images = files
    black = write(tmp_path / "black.png", torch.zeros(3, 8, 8, dtype=torch.uint8))
    images = torch.cat([images, torch.zeros(1, 3, 8, 8, dtype=torch.uint8)])

    def energy(scores: Tensor) -> np.ndarray:
        return np.log(np.exp(scores[:, live].double().numpy()).sum(axis=1))

    known = np.sort(energy(pets.decision_function(held_out.images)))
    # Of 12 held-out images at 0.4: the floor(0.4 · 13) = fifth smallest.
    assert len(known) == 12
    expected = energy(pets.decision_function(images)) < known[4]
    predictor = predictor_of(pets, false_alarms=0.4)
    assert predictor.num_held_out == 12
    (batch,) = predictor.predict([*paths, black])
    assert [told.is_unknown for told in batch] == expected.tolist()


def test_what_cannot_be_asked_is_refused(pets: Learner) -> None:
    with pytest.raises(ValueError, match="top 0 names no class"):
        predictor_of(pets, top=0)
    with pytest.raises(ValueError, match="5 % false alarms need at least 19 held-out images"):
        predictor_of(pets, false_alarms=0.05)
    with pytest.raises(ValueError, match="nothing has been learnt yet"):
        predictor_of(learner(Finetune.Settings(base=recipe(), update=recipe())))


def test_threads_that_read_at_once_share_their_decoders(
    pets: Learner, files: tuple[list[Path], Tensor]
) -> None:
    """Each once made decoders of its own, whose processes nobody ended."""
    script = (
        "import threading\nfrom pathlib import Path\nfrom grace.data import decoders\n"
        "made = []\nfirst = decoders._Decoders.__init__\n"
        "def noted(self):\n    made.append(self)\n    first(self)\n"
        "decoders._Decoders.__init__ = noted\nstart = threading.Barrier(4)\n"
        f"path = Path({str(files[0][0])!r})\n"
        "def read():\n    start.wait()\n    decoders.read_pixels(path, 3, 8)\n"
        "threads = [threading.Thread(target=read) for _ in range(4)]\n"
        "[own.start() for own in threads]\n[own.join() for own in threads]\nprint(len(made))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
