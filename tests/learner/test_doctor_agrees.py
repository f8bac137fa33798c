"""``doctor`` finds what ``learn`` refuses of images, and nothing else."""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import final

import pytest

from grace.base.errors import GraceError
from grace.data.decoding import Reading
from grace.data.folders import load_update
from grace.engine.progress import Progress
from grace.learner.call import LearnCall
from grace.learner.learn import learn
from grace.learner.learner import Learner
from grace.methods.replay import Replay
from support import one_process
from support import tiny_streams as ts
from support.picture_folders import PLACES, folder, picture
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = [
    pytest.mark.usefixtures("tiny_backbones"),
    pytest.mark.filterwarnings("ignore::grace.base.errors.GraceWarning"),
]

BASE = ("engine.device=cpu", "engine.threads=1", "engine.compile=false", "budget.minutes=null")
NEW = (
    (), ("memory.max_mb=0.05",), ("memory.max_mb=2", "memory.size=null"), ("data.image_size=null",),
    ("data.image_size=12", "data.channels=1"), ("method=finetune",), ("memory.validation=0",),
)  # fmt: skip
SAVED = ((), ("memory.max_mb=0.05",), ("method=grace",))


@final
class _ReachedError(Exception):
    """Training would begin."""


@final
class _Stop(Progress):
    """Ends ``learn`` where its first phase begins."""

    def phase_started(self, name: str, epochs: int, images: int) -> None:
        raise _ReachedError


def refusal(model: Path, images: Path, wishes: Sequence[str]) -> GraceError | None:
    """Return why ``learn`` refuses the images; ``None``: it begins to train, or knows them."""
    try:
        learn(model, images, [*BASE, *wishes], progress=_Stop())
    except _ReachedError:
        return None
    except GraceError as error:
        return error
    return None


def is_ready(model: Path, images: Path, wishes: Sequence[str]) -> bool:
    try:
        call = LearnCall(model=model, images=images, overrides=[*BASE, *wishes], dry_run=True)
        return call.examine().is_ready
    except GraceError:
        return False


def random_folder(root: Path, draw: random.Random) -> Path:
    """Write a folder that has some of the problems that folders have."""
    names = draw.sample(sorted(PLACES), draw.choice([0, 1, 2, 2, 3]))
    parts = [root] if draw.random() < 0.6 else [root / "train", root / "test"]
    root.mkdir(parents=True)
    for seed, part in enumerate(parts):
        some = names if seed == 0 else draw.sample(names, draw.randint(0, len(names)))
        folder(part, *some, count=draw.choice([1, 2, 4, 8]), seed=seed)
        part.mkdir(exist_ok=True)
    files = sorted(root.rglob("*.png"))
    if files and draw.random() < 0.3:
        draw.choice(files).write_bytes(draw.choice([b"", b"no image"]))
    if files and draw.random() < 0.3:
        draw.choice(files).write_bytes(draw.choice(files).read_bytes())
    if files and draw.random() < 0.2:
        picture("ant", 99, draw.choice([15, 20, 40])).save(draw.choice(files))
    if draw.random() < 0.1:
        folder(parts[0], "Ant" if "ant" in names else "ant", count=2, seed=7)
    if draw.random() < 0.1:
        (parts[0] / "empty").mkdir()
    return root


def tree(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> Path:
    place = tmp_path_factory.mktemp("saved")
    first = load_update(folder(place / "first", "ant", "bee"), Reading(3, 16))
    method = Replay.Settings(base=ts.recipe(), update=ts.recipe())
    learner = Learner.create(ts.settings(method), shape=(3, 16, 16), directory=place / "model")
    learner.update(first.train.images, first.classes_of(first.train))
    return place / "model"


@pytest.mark.parametrize("seed", range(24))
def test_they_agree_on_any_folder(seed: int, saved: Path, tmp_path: Path) -> None:
    draw, model = random.Random(seed), tmp_path / "model"  # noqa: S311 - a test's draws
    images, is_new = random_folder(tmp_path / "images", draw), seed % 3 > 0
    if not is_new:
        shutil.copytree(saved, model)
    names = ("unreadable", "duplicates")
    skips = [f"data.skip_{name}=true" for name in names if draw.random() < 0.3]
    wishes, before = [*draw.choice(NEW if is_new else SAVED), *skips], tree(tmp_path)
    ready = is_ready(model, images, wishes)
    assert tree(tmp_path) == before
    refused = refusal(model, images, wishes)
    assert ready == (refused is None), refused


def test_doctor_and_what_is_refused_early_need_no_torch(saved: Path, tmp_path: Path) -> None:
    images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
    one = folder(tmp_path / "one", "ant")
    refused = {
        (tmp_path / "nowhere", "--model", saved): "does not exist",
        (one, "--model", model): "the first update of a learner needs at least two",
        (images, "--model", images / "model"): "where it would be taken for a class",
        (images, "--model", model, "--max-mb", "0.5"): "alone take 1.082 MB, and the ceiling is "
        "0.500 MB: set memory.max_mb=2.2, or a smaller backbone.name",
        (images, "--model", saved, "--max-mb", "0.01"): "and the ceiling is 0.010 MB",
        (images, "--model", model, "backbone.weights=x.safetensors"): "is missing",
    }
    ready = [["doctor", images], ["doctor", images, "--model", saved]]
    ends = one_process.calls(*(["learn", *words] for words in refused), *ready, without=["torch"])
    assert [end.exit_code for end in ends] == [2] * len(refused) + [0, 0]
    for end, says in zip(ends, refused.values(), strict=False):
        assert end.stderr.startswith("error: ")
        assert says in end.stderr
    assert not model.exists()
