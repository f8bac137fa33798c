"""A ceiling holds: no version takes more bytes on disk, whatever comes, and refusals name a way."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from grace.base import strict_json
from grace.learner.admit import (
    RESERVED_FOR_FEATURES,
    RESERVED_PER_CLASS,
    RESERVED_PER_LEARNER,
    RESERVED_PER_UPDATE,
    in_mb,
    reserved_bytes,
)
from grace.learner.document import UpdateRecord
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from grace.settings.method import BaseMethodSettings
from support.contract import VARIANTS, every_variant
from support.tiny_streams import SIZE, class_names, labelled, pictures, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")

ONE = recipe()
REPLAY = VARIANTS["replay"]
IMAGE_BYTES = 3 * SIZE * SIZE
# ResNet-8 with its buffers as float32, by hand as in test_learner: about 0.3 MB.
BACKBONE = 4 * (74_160 + 480 + 480) + 7 * 8


def grows(**choices: Any) -> Grace.Settings:
    """GRACE that wants to grow at every update."""
    return Grace.Settings(base=ONE, grow=ONE, compress=ONE, **{"threshold": 0.0} | choices)


def create(method: BaseMethodSettings, home: Path | None = None, **memory: Any) -> Learner:
    chosen = settings(method, memory=MemorySettings(**{"size": None} | memory))
    return Learner.create(chosen, shape=(3, SIZE, SIZE), directory=home)


def teach(made: Learner, counts: Mapping[int, int], seed: int = 0) -> UpdateRecord:
    data = labelled(counts, seed=seed)
    return made.update(data.images, class_names(data))


def bytes_on_disk(home: Path, number: int) -> int:
    """Of one version: its document, and each of its objects once."""
    names = {ref.sha256 for ref in ModelStore.open(home).document(number).refs}
    files = [home / "objects" / f"{name}.safetensors" for name in names]
    return sum(path.stat().st_size for path in [home / "versions" / f"{number:04d}.json", *files])


def named_budget(refusal: str) -> float:
    found = re.search(r"set memory.max_mb=(\d+\.\d{3})$", refusal)
    assert found is not None, refusal
    return float(found[1])


OTHERS = ("der", "replay", "finetune", "ewc", "foster", "icarl", "memo", "wa")


@st.composite
def streams(draw: st.DrawFn) -> tuple[BaseMethodSettings, dict[str, Any], list[dict[int, int]]]:
    """A method, its memory, and the images of each class in each update."""
    num_images, known = st.integers(1, 20), 0
    updates: list[dict[int, int]] = []
    for _ in range(draw(st.integers(2, 3))):
        new = draw(st.integers(1 if known else 2, 3))
        counts = {index: draw(num_images) for index in range(known, known + new)}
        if known and draw(st.booleans()):
            counts[draw(st.integers(0, known - 1))] = draw(num_images)
        updates.append(counts)
        known += new
    threshold = st.sampled_from([0.0, 0.0, 0.3, 1.0])
    method = draw(
        threshold.map(lambda value: grows(threshold=value))
        | st.sampled_from(OTHERS).map(VARIANTS.get)
    )
    # iCaRL classifies by its exemplars and refuses to have none.
    none = st.nothing() if method.name == "icarl" else st.just(0)
    size = draw(st.none() | none | st.integers(known, 60))
    return method, {"size": size, "validation": draw(st.integers(0, 3))}, updates


# From less than a backbone, over little more than one, two and three, to more than all of it.
budgets = st.floats(0.2, 0.4) | st.floats(0.2, 1.5) | st.just(9.0)


def carry_out(
    method: BaseMethodSettings, memory: dict[str, Any], updates: list[dict[int, int]], home: Path
) -> tuple[int, str, Learner]:
    """Learn some updates; returns how many were learnt, the refusal, and the learner."""
    made, limit = create(method, home, **memory), memory["max_mb"] * 1e6
    for step, counts in enumerate(updates):
        try:
            update = teach(made, counts, seed=step)
        except ValueError as refusal:
            assert not ModelStore.open(home).pending()
            return step, str(refusal), made
        for number in ModelStore.open(home).numbers():
            assert bytes_on_disk(home, number) <= limit
        assert update.num_bytes <= limit
        if method.traits.memory == "exemplars" and memory["size"] != 0:
            assert all(made.method.memory.of_class(i) for i in range(len(made.class_names)))
    return len(updates), "", made


@hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=streams(), max_mb=budgets)
def test_no_version_is_larger(stream: Any, max_mb: float) -> None:
    method, memory, updates = stream
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        done, refusal, made = carry_out(method, memory | {"max_mb": max_mb}, updates, home)
        if done == len(updates):
            return
        assert len(made.history) == done
        enough = named_budget(refusal)
        assert enough * 1e6 > max_mb * 1e6
        # Never much more than one backbone more than there are, or as much as EWC has to say of
        # its only one, and little beside it.
        most = 2 if method.name == "ewc" else made.size().num_backbones + 1
        assert enough * 1e6 < most * (BACKBONE + 30_000) + 40_000
        again, upto = Path(folder) / "again", updates[: done + 1]
        assert carry_out(method, memory | {"max_mb": enough}, upto, again)[:2] == (done + 1, "")


def test_without_room_it_compresses_and_the_threshold_decays(tmp_path: Path) -> None:
    made = create(grows(threshold=0.1, threshold_decay=0.5), tmp_path / "home", max_mb=0.4)
    outcomes = [teach(made, {0: 12, 1: 12}).outcome]
    outcomes += [teach(made, {index: 12}).outcome for index in (2, 3)]
    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts == ["start", "compress (budget)", "compress (budget)"]
    assert all(o.saturation is not None and o.saturation > 0.1 for o in outcomes[1:])
    assert [outcome.threshold for outcome in outcomes[1:]] == pytest.approx([0.1, 0.05])
    # Compression by budget is compression: what it cost is told.
    again = Learner.load(tmp_path / "home")
    assert teach(again, {4: 12}).outcome.threshold == pytest.approx(0.025)


def test_der_is_refused_where_it_cannot_grow(tmp_path: Path) -> None:
    made = create(VARIANTS["der"], tmp_path / "home", max_mb=0.4)
    teach(made, {0: 6, 1: 6})
    with pytest.raises(ValueError, match=r"this update needs at least 0\.6") as refusal:
        teach(made, {2: 6})
    assert 2 * BACKBONE < named_budget(str(refusal.value)) * 1e6 < 2 * BACKBONE + 40_000
    assert (len(made.history), ModelStore.open(tmp_path / "home").numbers()) == (1, [1])
    # A refused update leaves nothing behind that would stand in another's way.
    made.forget("class 0")
    with pytest.raises(ValueError, match="joint keeps all images, which no ceiling can bound"):
        create(VARIANTS["joint"], tmp_path / "joint", max_mb=50.0)
    assert not (tmp_path / "joint").exists()


def test_exemplars_take_what_is_left(tmp_path: Path) -> None:
    made = create(REPLAY, tmp_path / "home", max_mb=0.35)
    update = teach(made, {0: 300, 1: 300})
    left = 350_000 - bytes_on_disk(tmp_path / "home", 1)
    assert update.num_exemplars == len(made.method.memory) < 600
    # 4.5 + 2.5 + 2 · 0.6 kB and the settings are reserved, document and headers take 4 of them;
    # an exemplar more of each class would not fit.
    assert 0 <= left < 8_000
    per_class = update.num_exemplars // 2
    assert [len(made.method.memory.of_class(index)) for index in (0, 1)] == [per_class] * 2
    # More classes share it, and each keeps the first of its herding.
    first = pictures_of(made, 0)
    teach(made, {2: 30})
    assert 0 < len(made.method.memory.of_class(0)) < per_class
    assert pictures_of(made, 0) == first[: len(pictures_of(made, 0))]


def test_a_fixed_number_per_class_is_refused_where_not_one_fits() -> None:
    with pytest.raises(ValueError, match=r"needs at least .* 2 exemplars") as refusal:
        teach(create(REPLAY, size=0, per_class=4, max_mb=0.2), {0: 9, 1: 9})
    enough = create(REPLAY, size=0, per_class=4, max_mb=named_budget(str(refusal.value)))
    teach(enough, {0: 9, 1: 9})
    assert all(len(enough.method.memory.of_class(index)) >= 1 for index in (0, 1))


def pictures_of(made: Learner, index: int) -> list[bytes]:
    data = made.method.memory.of_class(index)
    return [image.tobytes() for image in data.gather(torch.arange(len(data))).numpy()]


def test_long_names_have_room(tmp_path: Path) -> None:
    """Names of 255 bytes, full of what JSON escapes; those revived stand there once more."""
    names = [chr(0x4E00 + i) + '"' * 252 for i in range(90)]
    replay = Replay.Settings(base=recipe(batch_size=128), update=recipe(batch_size=128))
    made = create(replay, validation=1, max_mb=0.68)
    images, labels = pictures(0, 90 * 9), [name for name in names for _ in range(9)]
    made.update(images, labels)
    made.model.hide(set(range(89)))
    update = made.update(pictures(1, 90 * 9), [*labels[:-9], *["new"] * 9])
    assert len(update.revived_class_names) == 89
    # The ceiling is reached: an exemplar more of each class might not fit.
    assert 91 <= update.num_exemplars < 91 * 8
    made.save(tmp_path / "home")
    assert 680_000 - 91 * IMAGE_BYTES - 60_000 < bytes_on_disk(tmp_path / "home", 1) <= 680_000


@every_variant
def test_what_is_reserved_is_enough(variant: str, tmp_path: Path) -> None:
    """A document and the headers of its image files, of every method, take half of it at most."""
    memory = MemorySettings(size=20, validation=2)
    chosen = settings(VARIANTS[variant], memory=memory)
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=tmp_path / "home")
    for step, new in enumerate([(0, 1), (2, 3)]):
        teach(made, dict.fromkeys(new, 8), seed=step)
    document = ModelStore.open(tmp_path / "home").document(2)
    files = [*document.exemplars.values(), *document.validation.values()]
    num_stored = 0 if made.method.memory.keep_all else len(made.method.memory)
    # The probe saves each image's features beside its pixels, two bytes for a number.
    has_features = made.method.features is not None
    image_bytes = IMAGE_BYTES + has_features * 2 * made.method.network.feature_dim
    headers = sum(ref.bytes for ref in files) - image_bytes * (num_stored + len(made.held_out))
    most = 130 + has_features * RESERVED_FOR_FEATURES
    assert 0 < headers <= most * len(files)
    fixed = len(document.dump()) - len(strict_json.dump(document.settings.model_dump(mode="json")))
    reserved = RESERVED_PER_LEARNER + 2 * RESERVED_PER_UPDATE + 4 * RESERVED_PER_CLASS
    assert fixed + headers < reserved / 2
    names = ["class 2", "class 3"]
    whole = reserved_bytes(document.settings, document.history[:1], names, [])
    assert whole > len(document.dump()) + headers


def test_megabytes_are_rounded_up() -> None:
    told = [in_mb(n) for n in (0, 1, 1000, 1001, 1_234_567)]
    assert told == ["0.000", "0.001", "0.001", "0.002", "1.235"]
