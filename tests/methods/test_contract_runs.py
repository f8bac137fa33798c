"""What every method keeps to, continued: whole runs, kills, seeds, devices, settings."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.data.images import Dataset
from grace.data.scenario import Task
from grace.engine.journal import Journal
from grace.engine.phase import Phase, Work
from grace.engine.trainer import NonFiniteLossError
from grace.learner.learner import Learner
from grace.runs.run import run as run_experiment
from grace.runs.stream import Stream
from grace.settings.experiment import (
    BackboneSettings,
    EngineSettings,
    ScenarioSettings,
    SeedSettings,
)
from grace.settings.load import ConfigWarning
from support.contract import PROBE, VARIANTS, every_variant, trains, with_epochs
from support.counted_images import ReadCounts
from support.hand_worked import Killed
from support.recorded_streams import STREAM, kept_parts, loaded, same_parts, teach
from support.tiny_streams import (
    SIZE,
    class_names,
    create_home,
    dataset,
    labelled,
    learn,
    learner,
    recipe,
    same,
    settings,
    state,
    watch,
)

pytestmark = pytest.mark.usefixtures("tiny_backbones")

AMONG_NEW = [name for name in VARIANTS if VARIANTS[name].traits.compares_new_classes_only]
"""Their loss compares the logits of new classes alone."""
trains_from_images = pytest.mark.parametrize(
    "variant", [name for name, own in VARIANTS.items() if own.traits.trains_backbone]
)
"""All but the probe, whose first work is a sweep, and whose head alone trains."""
AMONG_ALL = [name for name in VARIANTS if name not in AMONG_NEW]
TAKING_A_TRUNK = [name for name in VARIANTS if VARIANTS[name].traits.takes_frozen_trunk]


@every_variant
def test_an_experiment_keeps_its_test_images_and_later_tasks_to_itself(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run: tasks of the classes {0, 1}, {2} and {3}."""
    keeps_all = VARIANTS[variant].traits.memory == "all images"
    reads, plain, learn = ReadCounts(), dataset(4, train=6, test=3), Stream.learn
    train, test = reads.counted(plain.train, "train"), reads.counted(plain.test, "test")
    images = Dataset(plain.name, train, test, plain.class_names, plain.mean, plain.std)

    def counted(stream: Stream, given: Task, journal: Journal | None) -> Any:
        reads.now = f"task {given.number}"
        done = learn(stream, given, journal)
        reads.now = f"test {given.number}"
        return done

    monkeypatch.setattr(Stream, "learn", counted)
    stream = ScenarioSettings(base=2, increment=1, class_order=(0, 1, 2, 3))
    run_experiment(
        settings(VARIANTS[variant], scenario=stream), directory=tmp_path / "run", dataset=images
    )
    for now, present in enumerate(([0, 1], [2], [3]), start=1):
        assert int(reads.of("test", f"task {now}").sum()) == 0
        own = torch.isin(train.labels, torch.tensor(present))
        while_learning = reads.of("train", f"task {now}")
        assert int(while_learning[own].min()) >= 1
        earlier = while_learning[train.labels < present[0]]
        assert bool((earlier >= 1).all() if keeps_all else (earlier == 0).all())
        assert int(while_learning[train.labels > present[-1]].sum()) == 0
        tested = reads.of("test", f"test {now}")
        assert int(tested[test.labels <= present[-1]].min()) >= 1
        assert int(tested[test.labels > present[-1]].sum()) == 0
        assert int(reads.of("train", f"test {now}").sum()) == 0


class TestOneNewClass:
    """Classes 0, 1 and 2, then class 3 alone; four epochs, of one step in the later task."""

    FIRST: Mapping[int, int] = {0: 10, 1: 10, 2: 10}
    LATER: Mapping[int, int] = {3: 9}

    @pytest.mark.parametrize("variant", AMONG_ALL)
    def test_it_is_told_from_the_old_ones(self, variant: str) -> None:
        made = learner(with_epochs(variant, 4))
        for counts in (self.FIRST, self.LATER):
            teach(made, labelled(counts))
        new = made.predict(labelled({3: 20}, seed=5).images)
        old = made.predict(labelled(dict.fromkeys(range(3), 20), seed=5).images)
        if not made.settings.method.traits.trains_backbone:
            # Its backbone has random weights here: it tells classes apart, less exactly.
            assert new.count("class 3") / 20 > old.count("class 3") / 60 + 0.3
            return
        # Chance is a quarter.
        assert new.count("class 3") / 20 >= 0.8
        assert old.count("class 3") / 60 <= 0.1

    @pytest.mark.parametrize("variant", AMONG_NEW)
    def test_it_teaches_nothing_where_it_is_compared_with_no_other(self, variant: str) -> None:
        """Cross-entropy of a lone logit is 0, and so is its gradient: weights only decay."""
        made = learner(with_epochs(variant, 4))
        teach(made, labelled(self.FIRST))
        handed_in: dict[str, Tensor] = {}

        def note(item: Work) -> None:
            if isinstance(item, Phase):
                network = {"backbones.0": "backbone.0", "head": "head"}
                for name, part in network.items():
                    own = state(item.parts[part].module)
                    handed_in.update({f"{name}.{n}": t for n, t in own.items()})

        watch(made, note)
        with pytest.warns(ConfigWarning, match="task 2 .*not learnt"):
            update = teach(made, labelled(self.LATER))
        assert update.work[0].losses["classification"] == 0.0
        # SGD on one weight that starts at 1: v ← 0.9 v + 2e-4 w, w ← w − 0.05 v.
        kept, speed = 1.0, 0.0
        for _ in range(4):
            speed = 0.9 * speed + 2e-4 * kept
            kept -= 0.05 * speed
        assert kept == pytest.approx(1 - 9.049e-5, abs=1e-8)
        parameters = dict(made.method.network.named_parameters())
        assert parameters.keys() <= handed_in.keys()
        for name, value in parameters.items():
            found, before = value.detach(), handed_in[name]
            if made.settings.method.traits.freezes_old_network:
                # Its teacher speaks of old classes: only the new one's row is left to decay.
                if name.partition(".")[0] != "head":
                    continue
                found, before = found[3:], before[3:]
            torch.testing.assert_close(found, before * kept, rtol=2e-6, atol=0)
        assert "class 3" not in made.predict(labelled({3: 20}, seed=5).images)


class TestSeeds:
    """Grey images here: any number of channels works."""

    def learnt(self, variant: str, **seeds: int) -> tuple[Learner, Mapping[str, Tensor]]:
        """A learner after a first task, and its network then."""
        made = learner(VARIANTS[variant], channels=1, seeds=SeedSettings(**seeds))
        teach(made, labelled({0: 8, 1: 8}, channels=1))
        return made, state(made.method.network)

    @every_variant
    def test_two_seeds_differ(self, variant: str) -> None:
        made, one = self.learnt(variant)
        # The first convolution comes first, whatever it is called.
        assert next(iter(one.values())).shape[1] == 1
        assert not same(self.learnt(variant, initialisation=2)[1], one)
        if trains(variant):  # Means do not depend on the order of images.
            assert not same(self.learnt(variant, data=2)[1], one)
        teach(made, labelled({2: 8}, channels=1))
        found = made.scores(labelled({0: 3}, channels=1).images)
        assert {scores.shape for scores in found.values()} == {(3, 3)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@every_variant
def test_cuda_learns_what_the_cpu_learns(variant: str) -> None:
    """Draws are the same on every device; the kernels round otherwise."""
    here, there = (
        learner(VARIANTS[variant], engine=EngineSettings(device=device, compile=False, threads=1))
        for device in ("cpu", "cuda")
    )
    for counts in STREAM[:2]:
        ours, theirs = (teach(made, labelled(counts)) for made in (here, there))
        assert [work.name for work in theirs.work] == [work.name for work in ours.work]
        for one, other in zip(ours.work, theirs.work, strict=True):
            assert other.losses == pytest.approx(one.losses, rel=0.05, abs=0.05)
    accuracies = [made.score(PROBE.images, class_names(PROBE)) for made in (here, there)]
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.2)


@trains_from_images
def test_a_huge_learning_rate_is_noticed(variant: str) -> None:
    wild = VARIANTS[variant].model_copy(update={"base": recipe(epochs=8, lr=1e30)})
    made = learner(wild)
    with pytest.raises(NonFiniteLossError, match=r"phase 'base', epoch \d+, batch \d+: lower"):
        teach(made, labelled(STREAM[0]))
    assert (made.history, made.class_names) == ([], [])
    assert made.method.classifiers() == {}
    assert (len(made.method.memory), made.size().num_backbones) == (0, 0)


@every_variant
def test_an_update_killed_after_every_epoch_and_every_sweep_ends_with_the_same_bits(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs of two steps: the second starts from momenta, and from draws of its own."""
    home, offer, perform = tmp_path / "home", Journal.offer_phase, Journal.perform
    create_home(with_epochs(variant, 2), home)
    teach(loaded(home, 0), labelled(STREAM[0]))
    shutil.copytree(home, tmp_path / "straight")
    straight = loaded(tmp_path / "straight", 1)
    work = teach(straight, labelled(STREAM[1])).work
    done: list[str] = []

    def after_epoch(journal: Journal, number: int, phase: Any, *rest: Any, is_last: bool) -> None:
        offer(journal, number, phase, *rest, is_last=is_last)
        done.append(f"an epoch of {phase.name}")
        if not is_last:
            raise Killed

    def after_item(journal: Journal, number: int, item: Any, *rest: Any) -> Any:
        result = perform(journal, number, item, *rest)
        if item.name not in done:
            done.append(item.name)
            raise Killed
        return result

    # A snapshot after every epoch, however short.
    monkeypatch.setattr(Journal.__init__, "__defaults__", (0.0, 0.0))
    monkeypatch.setattr(Journal, "offer_phase", after_epoch)
    monkeypatch.setattr(Journal, "perform", after_item)
    for _ in range(sum(2 if item.epochs else 1 for item in work)):
        with pytest.raises(Killed):
            teach(loaded(home, 1), labelled(STREAM[1]))
    made = loaded(home, 1)
    again = teach(made, labelled(STREAM[1]))
    # Nothing was done twice.
    expected = [[*[f"an epoch of {i.name}"] * (2 if i.epochs else 0), i.name] for i in work]
    assert done == [name for names in expected for name in names]
    assert same_parts(kept_parts(made), kept_parts(straight))
    assert [(i.name, i.losses) for i in again.work] == [(i.name, i.losses) for i in work]


@pytest.mark.parametrize("variant", TAKING_A_TRUNK)
def test_a_frozen_trunk_never_changes(variant: str, tmp_path: Path) -> None:
    """Stem and stage 1 of a ResNet-8 are the trunk; stages 2 and 3 learn."""
    backbone = BackboneSettings(name="resnet20", train="last-stages", last_stages=2)
    chosen = settings(VARIANTS[variant], backbone=backbone)
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=tmp_path / "model")

    def note(item: Work) -> None:
        if isinstance(item, Phase):
            assert not item.parts["trunk"].changes
            assert [n for n, p in item.parts.items() if "images" in p.reads] == ["trunk"]

    watch(made, before=note)
    fresh, pixels = made.method.factory.backbone(1), torch.rand(2, 3, SIZE, SIZE)
    later = [{2: 9}, {3: 9}, *([{0: 5}] if chosen.method.traits.learns_known_classes else [])]
    learn(made, {0: 9, 1: 9})
    learnt = state(made.method.network.backbones[0])
    for counts in later:
        learn(made, counts)
    network: Any = made.method.network
    assert len(list(network.trunk.children())) == 2
    with torch.no_grad():
        assert torch.equal(network.trunk(pixels), fresh.maps(pixels)[1])
    assert not same(state(network.backbones[-1]), learnt)
    # A saved learner has one trunk, and predicts the same.
    assert same(Learner.load(tmp_path / "model").scores(PROBE.images), made.scores(PROBE.images))
