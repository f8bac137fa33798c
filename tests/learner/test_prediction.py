"""Naming what image files show: in order, in batches, whatever some files are like; evaluating."""

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
from support.tiny_streams import pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


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
    batch: int, saved: Path, files: tuple[list[Path], Tensor], tmp_path: Path
) -> None:
    (paths, images), pets = files, Learner.load(saved)
    # Another size is brought to the learner's square: one colour stays one colour, and of a wide
    # picture the middle is taken.
    grey, bright = (torch.full((1, 3, 8, 8), level, dtype=torch.uint8) for level in (90, 140))
    wide = torch.cat([bright[0, :, :, :4], images[0], grey[0, :, :, :4]], dim=2)
    large = torch.full((3, 40, 30), 90, dtype=torch.uint8)
    paths += [write(tmp_path / "large.png", large), write(tmp_path / "wide.png", wide)]
    images = torch.cat([images, grey, images[:1]])
    bad = {"empty": b"", "text": b"no image", "cut": paths[0].read_bytes()[:60], "absent": None}
    for place, (name, content) in enumerate(bad.items()):
        paths.insert(2 * place, tmp_path / f"{name}.png")
        if content is not None:
            paths[2 * place].write_bytes(content)
    expected, (_, familiar) = pets.predict_proba(images), pets.recognise(images)
    answers = list(predict_files(pets.answerer(), paths, top=2, batch=batch))
    assert [told.path for told in answers] == paths
    unread, read = ([own for own in answers if bool(own.problem) == is_bad] for is_bad in (1, 0))
    assert [own.path.stem for own in unread] == list(bad)
    for own in unread:
        assert (own.guesses, own.familiarity) == ((), None)
        assert f"'{own.path}'" in str(own.problem)
        assert "\n" not in str(own.problem)
    assert len({told.guesses[0].class_name for told in read}) > 1
    for told, own, known in zip(read, expected, familiar, strict=True):
        ranked = sorted(range(5), key=lambda index: -float(own[index]))[:2]
        assert [guess.index for guess in told.guesses] == ranked
        assert [guess.class_name for guess in told.guesses] == [pets.class_names[i] for i in ranked]
        shares = [guess.probability for guess in told.guesses]
        assert shares == pytest.approx([float(own[index]) for index in ranked], abs=1e-5)
        assert told.familiarity == pytest.approx(float(known), abs=1e-4)


def test_files_are_read_batch_by_batch_and_equal_classes_keep_their_order(
    saved: Path, files: tuple[list[Path], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    read = prediction.read_pixels

    def noted(path: Path, *given: Any) -> Pixels:
        opened.append(path)
        return read(path, *given)

    monkeypatch.setattr(prediction, "read_pixels", noted)
    torn = Learner.load(saved)
    told = predict_files(torn.answerer(), files[0] * 20, batch=3)
    assert [next(told).path for _ in range(4)] == files[0][:4]
    assert len(opened) == 6
    # A batch of pixels has a limit too.
    monkeypatch.setattr(prediction, "BATCH_BYTES", 5 * 3 * 8 * 8)
    opened.clear()
    with torch.no_grad():
        torn.method.network.head.weight.zero_()
        torn.method.network.head.bias.zero_()
    first = next(predict_files(torn.answerer(), files[0] * 20, top=99))
    assert len(opened) == 5
    # The forgotten class is none of them.
    assert [(guess.index, guess.probability) for guess in first.guesses] == [
        (index, 0.25) for index in (0, 1, 3, 4)
    ]
    assert list(predict_files(torn.answerer(), [])) == []


def test_without_a_square_images_must_have_the_size_and_colours_become_grey(tmp_path: Path) -> None:
    chosen = settings(Finetune.Settings(base=recipe(), update=recipe()))
    made = Learner.create(chosen, shape=(1, 8, 16), mean=(0.4,), std=(0.3,))
    with pytest.raises(ValueError, match="nothing has been learnt yet"):
        made.answerer()
    noise = torch.randint(0, 255, (8, 1, 8, 16), generator=torch.Generator().manual_seed(0))
    images = noise.to(torch.uint8)
    made.update(images, ["cat", "dog"] * 4)
    colour = images[0].expand(3, -1, -1).contiguous()
    turned = write(tmp_path / "turned.png", colour.transpose(1, 2).contiguous())
    one, other = predict_files(made.answerer(), [write(tmp_path / "right.png", colour), turned])
    assert one.guesses[0].probability == float(made.predict_proba(images[:1]).max())
    assert other.problem == (
        f"image '{turned}' has 8×16 pixels, this learner takes 16×8: resize it"
    )


def test_the_numbers_of_an_evaluation_by_hand() -> None:
    said = (
        ("ant", "ant", 0.9), ("ant", "bee", 0.8), ("ant", "bee", 0.6), ("bee", "bee", 1.0),
        ("bee", "bee", 0.7), ("cat", "ant", 0.95), ("cat", "cat", 0.5), ("cat", "cat", 0.5),
    )  # fmt: skip
    results = [ImageResult(Path(f"{number}.png"), *own) for number, own in enumerate(said)]
    found = Evaluated(model=Path("m"), version=3, images=Path("images"), results=results)
    facts = found.facts
    assert (facts["num_images"], facts["num_right"]) == (8, 5)
    assert facts["accuracy"] == found.accuracy == 5 / 8
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
