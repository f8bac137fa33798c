"""A learner whose exemplars are stored as WebP: bits, bytes, forgeries."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from grace.base.errors import DamagedError
from grace.data.images import TensorImages
from grace.data.memory import decode_stored
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.tiny_streams import pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")

SIDE = 32
SHAPE = (3, SIDE, SIDE)


def photographs(index: int, count: int, seed: int = 0) -> Tensor:
    """Smooth pictures of a class, uint8 (N, 3, 32, 32)."""
    small = pictures(index, count, seed=seed).float()
    return torch.nn.functional.interpolate(small, SIDE, mode="bicubic").clamp(0, 255).byte()


def stream(*classes: int, count: int = 12, seed: int = 0) -> tuple[Tensor, list[str]]:
    pixels = torch.cat([photographs(index, count, seed) for index in classes])
    return pixels, [f"class {index}" for index in classes for _ in range(count)]


def create(home: Path | None, **memory: Any) -> Learner:
    method = Replay.Settings(base=recipe(), update=recipe())
    chosen = {"format": "webp", "size": 12, "validation": 2} | memory
    own = settings(method, memory=MemorySettings.model_validate(chosen))
    return Learner.create(own, shape=SHAPE, directory=home)


def kept(learner: Learner) -> dict[int, tuple[bytes, ...]]:
    memory = learner.method.memory
    found = {index: memory.of_class(index) for index in memory.classes}
    held = {i: images for i, images in found.items() if isinstance(images, TensorImages)}
    assert all(images.files for images in held.values())
    return {i: tuple(images.files or ()) for i, images in held.items()}


def test_bits_are_those_of_a_learner_that_stayed(tmp_path: Path) -> None:
    made = create(tmp_path / "m")
    made.update(*stream(0, 1))
    shutil.copytree(tmp_path / "m", tmp_path / "copy")
    again, first = Learner.load(tmp_path / "copy"), kept(made)
    for each in (made, again):
        images, names = stream(0, count=1, seed=5)
        more, others = stream(2)
        each.update(torch.cat([images, more]), names + others)
    assert kept(again) == kept(made)
    assert {index: len(files) for index, files in kept(made).items()} == {0: 4, 1: 4, 2: 4}
    # What is stored stays as it is, however often the class is herded again.
    assert kept(made)[1] == first[1][:4]
    assert set(kept(made)[0]) & set(first[0])
    for index, files in kept(made).items():
        held = made.method.memory.of_class(index).gather(torch.arange(4))
        assert torch.equal(decode_stored(files, SHAPE).pixels, held)
    document = ModelStore.open(tmp_path / "m").document(2)
    assert {i: ref.num for i, ref in document.exemplars.items()} == {0: 4, 1: 4, 2: 4}
    total = sum(len(file) for files in kept(made).values() for file in files)
    assert total < document.bytes_by_kind["exemplars"] < total + 3 * 300
    made.rollback(1)
    assert kept(made) == first
    made.forget("class 1")
    left = b"".join(path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file())
    assert not any(file in left for file in first[1])
    assert kept(Learner.load(tmp_path / "m")).keys() == {0}


def test_what_was_learnt_is_not_held_out_later() -> None:
    """Copies of exemplars are found although WebP changed them."""
    made = create(None, size=100)
    images, names = stream(0, 1)
    made.update(images, names)
    held = made.held_out.keys()
    made.update(images, names, validation=(images, names), again=True)
    assert made.held_out.keys() == held


def files(*held: bytes) -> dict[str, Any]:
    data = torch.frombuffer(bytearray(b"".join(held)), dtype=torch.uint8)
    return {"encoded": data, "lengths": torch.tensor(list(map(len, held)), dtype=torch.int32)}


def webp(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "WEBP")
    return out.getvalue()


FORGERIES = {
    "another length": lambda t: t | {"lengths": t["lengths"] + 1},
    "negative lengths": lambda t: t | {"lengths": t["lengths"] * torch.tensor([-1] + [1] * 5)},
    "one image less": lambda t: files(webp(SIDE, SIDE)),
    "no images": lambda t: {name: tensor[:0] for name, tensor in t.items()},
    "other types": lambda t: t | {"lengths": t["lengths"].long()},
    "another tensor": lambda t: t | {"more": t["lengths"]},
    "both kinds": lambda t: t | {"images": torch.zeros(6, *SHAPE, dtype=torch.uint8)},
    "a bomb": lambda t: files(*[webp(3000, 3000)[:3000]] * 6),
    "another size": lambda t: files(*[webp(SIDE, SIDE + 1)] * 6),
    "noise": lambda t: t | {"encoded": t["encoded"].flip(0)},
    "cut off": lambda t: files(*[webp(SIDE, SIDE)[:-20]] * 6),
    "too long": lambda t: files(*[b"x" * 3073] + [b"x"] * 5),
    "no number": lambda t: t | {"num": None},
    "more than there ever were": lambda t: t | {"num": 10**6},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> Path:
    home = tmp_path_factory.mktemp("forged") / "m"
    create(home).update(*stream(0, 1))
    return home


@pytest.mark.parametrize("kind", FORGERIES)
def test_forged_exemplars_are_a_damaged_learner(kind: str, model: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(model, tmp_path / "m"))
    store, path = ModelStore.open(home), home / "versions" / "0001.json"
    ref = store.document(1).exemplars[0]
    changed = FORGERIES[kind](store.read(ref, "it"))
    num = changed.pop("num", ref.num)
    facts = json.loads(path.read_bytes())
    facts["exemplars"]["0"] = {**store.put(changed).model_dump(), "num": num}
    path.write_text(json.dumps(facts))
    with pytest.raises(DamagedError):
        Learner.load(home)


def test_many_images_in_few_bytes_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flat images take hardly any bytes: what they take decoded is counted, by their number."""
    home = Path(shutil.copytree(model, tmp_path / "m"))
    path = home / "versions" / "0001.json"
    facts = json.loads(path.read_bytes())
    facts["exemplars"]["0"]["num"] = facts["original_counts"]["0"] = 10**6
    path.write_text(json.dumps(facts))
    monkeypatch.setattr("grace.learner.versions.memory_bytes", lambda: 10**9)
    with pytest.raises(DamagedError, match="too many for the memory of this machine"):
        Learner.load(home)


def test_the_format_of_a_living_learner_can_change(tmp_path: Path) -> None:
    """Exemplars of several formats stand beside each other, and the ceiling holds for all."""
    limits = {"size": None, "max_mb": 0.42, "validation": 0}
    made = create(tmp_path / "m", format="raw", **limits)
    made.update(*stream(0, 1, count=40))
    raw = len(made.method.memory)
    for quality in (75, 100):
        encoded = create(tmp_path / str(quality), quality=quality, **limits)
        encoded.update(*stream(0, 1, count=40))
        assert len(encoded.method.memory) > 1.5 * raw > 0
    made.change_settings("memory.format=webp")
    assert 0 < len(made.method.memory) <= raw  # The change itself takes some bytes.
    made.update(*stream(2, count=40))
    again = Learner.load(tmp_path / "m")
    again.change_settings("memory.format=raw")
    again.update(*stream(3, count=40))
    for learner, classes in ((made, 3), (again, 4)):
        memory = learner.method.memory
        assert [bool(memory.of_class(i).files) for i in range(classes)] == [
            index == 2 for index in range(classes)
        ]
    for home in tmp_path.iterdir():
        documents = ModelStore.open(home).survey().documents
        assert all(document.num_bytes <= 420_000 for document in documents)
