"""What an update would take."""

import pytest

from grace.engine.phase import Phase, Sweep, Work
from grace.learner import budget
from grace.learner import estimate as estimating
from grace.learner.learner import Learner
from grace.methods.planning import Coming, PlannedPhase
from grace.settings.experiment import BackboneSettings
from grace.settings.methods import (
    BaseMethodSettings,
    DERSettings,
    EWCSettings,
    FinetuneSettings,
    FosterSettings,
    GraceSettings,
    ICaRLSettings,
    JointSettings,
    MemoSettings,
    ReplaySettings,
    WASettings,
)
from support import tiny_streams as ts
from support.contract import VARIANTS

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def learner() -> Learner:
    method = GraceSettings(base=ts.recipe(2), grow=ts.recipe(3), compress=ts.recipe(5))
    return Learner.create(ts.settings(method), shape=(3, 8, 8))


REPLAY_32, REPLAY_72 = (ReplaySettings(base=ts.recipe(batch_size=size)) for size in (32, 72))


class TestEstimate:
    def test_the_first_update_is_the_base_phase_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        found = estimating.estimate(learner(), num_new=2, num_train=40)
        # 2 epochs of 40 images at 10 images/s.
        assert found.seconds == pytest.approx(8.0)

    def test_a_later_one_grows_and_compresses_beside_frozen_backbones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        made = learner()
        data = ts.labelled({0: 20, 1: 20})
        made.update(data.images, ts.class_names(data))
        assert len(made.method.memory) == 12
        found = estimating.estimate(made, num_new=1, num_train=18)
        # 30 images: 3 epochs beside one frozen backbone, 5 beside two.
        assert found.seconds == pytest.approx((3 * 30 * 4 / 3 + 5 * 30 * 5 / 3) / 10)

    def test_known_classes_alone_skip_both(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        made = learner()
        data = ts.labelled({0: 20, 1: 20})
        made.update(data.images, ts.class_names(data))
        found = estimating.estimate(made, num_new=0, num_train=18)
        # One refresh phase, with the recipe of Compress, beside the network itself.
        assert found.seconds == pytest.approx(5 * 30 * 4 / 3 / 10)

    @pytest.mark.parametrize(
        ("method", "passes"),
        [
            # Epochs, each a training pass and a third of one for every frozen backbone.
            (ReplaySettings(base=ts.recipe(), update=ts.recipe(3)), 3),
            (ICaRLSettings(base=ts.recipe(), update=ts.recipe(3)), 3 * 4 / 3),
            (WASettings(base=ts.recipe(), update=ts.recipe(3)), 3 * 4 / 3),
            (DERSettings(base=ts.recipe(), grow=ts.recipe(3)), 3 * 4 / 3),
            (MemoSettings(base=ts.recipe(), grow=ts.recipe(3)), 3 * 4 / 3),
            (
                FosterSettings(base=ts.recipe(), boost=ts.recipe(3), compress=ts.recipe(5)),
                3 * 4 / 3 + 5 * 5 / 3,
            ),
        ],
        ids=lambda value: getattr(value, "name", ""),
    )
    def test_every_method_counts_what_is_frozen(
        self, method: BaseMethodSettings, passes: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        made = Learner.create(ts.settings(method), shape=(3, 8, 8))
        data = ts.labelled({0: 20, 1: 20})
        made.update(data.images, ts.class_names(data))
        found = estimating.estimate(made, num_new=1, num_train=18)
        assert found.seconds == pytest.approx(passes * 30 / 10)

    def test_ewc_has_no_exemplars(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        method = EWCSettings(base=ts.recipe(), update=ts.recipe(3))
        made = Learner.create(ts.settings(method), shape=(3, 8, 8))
        data = ts.labelled({0: 20, 1: 20})
        made.update(data.images, ts.class_names(data))
        assert estimating.estimate(made, num_new=1, num_train=18).seconds == pytest.approx(5.4)

    @pytest.mark.parametrize(
        ("method", "passes"),
        [
            # All 40 images of the first update and the 18 of this one, from scratch.
            (JointSettings(base=ts.recipe(4)), 4 * 58),
            # The images of this one alone.
            (FinetuneSettings(base=ts.recipe(), update=ts.recipe(3)), 3 * 18),
        ],
        ids=lambda value: getattr(value, "name", ""),
    )
    def test_the_bounds_count_all_images_and_none_but_new_ones(
        self, method: BaseMethodSettings, passes: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        made = Learner.create(ts.settings(method), shape=(3, 8, 8))
        data = ts.labelled({0: 20, 1: 20})
        made.update(data.images, ts.class_names(data))
        found = estimating.estimate(made, num_new=1, num_train=18)
        assert found.seconds == pytest.approx(passes / 10)
        assert found.seconds > 0

    def test_it_counts_what_the_methods_own_plan_states(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Coming] = []

        def plan(coming: Coming) -> list[PlannedPhase]:
            asked.append(coming)
            return [
                PlannedPhase(name="one", epochs=2, num_images=50, trained=1.5, frozen=6.0),
                PlannedPhase(name="two", epochs=1, num_images=30, trained=0.0, frozen=3.0),
            ]

        made = learner()
        data = ts.labelled({0: 20, 1: 20})
        made.update(data.images, ts.class_names(data))
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        monkeypatch.setattr(made.method, "plan", plan)
        found = estimating.estimate(made, num_new=2, num_train=18)
        # 2·50 images at 1.5 + 6/3 passes, and 30 at 3/3.
        assert found.seconds == pytest.approx((2 * 50 * 3.5 + 30) / 10)
        expected = Coming(
            is_first=False, num_new=2, num_images=18, num_kept=12, num_seen=40, num_backbones=1
        )
        assert asked == [expected]

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_plan_names_the_phases_that_come(self, variant: str) -> None:
        """With their epochs and images; GRACE plans to compress, whatever it will decide."""
        made = ts.learner(VARIANTS[variant])
        for counts, num_new in (({0: 10, 1: 10, 2: 10}, 3), ({3: 10, 4: 10}, 2)):
            coming = Coming(
                is_first=not made.history,
                num_new=num_new,
                num_images=sum(counts.values()),
                num_kept=len(made.method.memory),
                num_seen=sum(made.method.memory.original_counts.values()),
                num_backbones=made.size().num_backbones,
            )
            plan = [(p.name, p.epochs, p.num_images) for p in made.method.plan(coming)]
            data = ts.labelled(counts)
            update = made.update(data.images, ts.class_names(data))
            done = [(w.name, w.epochs, w.images) for w in update.work if w.epochs]
            if update.outcome.verdict == "grow" and made.settings.method.name == "grace":
                plan = [planned for planned in plan if planned[0] != "compress"]
            if not made.settings.method.traits.trains_backbone:
                # A sweep costs what is planned; the head trains on its features in no time.
                assert plan == [("features", 1, sum(counts.values()))]
            else:
                assert plan == done

    def test_the_trial_leaves_the_learner_as_it_was(self) -> None:
        made = learner()
        data = ts.labelled({0: 20, 1: 20})
        made.update(data.images, ts.class_names(data))
        before, work = ts.state(made.method.network), made.history[0].work
        found = estimating.estimate(made, num_new=1, num_train=18)
        assert found.images_per_second > 0
        assert found.memory_bytes > 50e6
        assert ts.same(before, ts.state(made.method.network))
        assert made.history[0].work == work


class TestFrozenBackbones:
    """They are tried as they learn: forward, without gradients."""

    def made(self, side: int = 8) -> Learner:
        settings = ts.settings(VARIANTS["probe"])
        return Learner.create(settings, shape=(3, side, side))

    def test_the_trial_trains_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made, tried = self.made(), list[Work]()
        carry_out = made.trainer.run

        def run(item: Work) -> None:
            tried.append(item)
            carry_out(item)

        monkeypatch.setattr(made.trainer, "run", run)
        found = estimating.estimate(made, num_new=2, num_train=40)
        assert found.is_frozen
        assert {type(item) for item in tried} == {Sweep}

    def test_the_time_is_that_of_one_pass_of_each_image(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 10.0)
        found = estimating.estimate(self.made(), num_new=2, num_train=60)
        # A pass takes a third of a training pass: 30 images/s.
        assert found.images_per_second == pytest.approx(30)
        assert found.seconds == pytest.approx(2)


class TestMemory:
    """What it is after one real batch, or after part of one and the rest in proportion."""

    @pytest.mark.parametrize(
        ("method", "num_images", "peaks", "tried", "memory"),
        [
            # Eight images were tried. 20 images/s in training and 60 in a sweep: in 2 s 40 and 120.
            # A batch of 32 and a sweep of 100 images pass whole.
            (REPLAY_32, 100, [50, 80, 90], [(Phase, 32), (Sweep, 100)], 90),
            # A training batch of 72 does not: 32 more than eight took 16 MB, so 32 more take 16.
            (REPLAY_72, 100, [50, 66, 70], [(Phase, 40), (Sweep, 100)], 66 + 16),
            # A sweep of 128 does not: 112 more than eight took 28 MB, so eight more take 2.
            (REPLAY_32, 200, [50, 50, 78], [(Phase, 32), (Sweep, 120)], 78 + 2),
            # No batch is larger than the trial's.
            (REPLAY_32, 8, [50], [], 50),
            # A frozen backbone has sweeps alone.
            (VARIANTS["probe"], 200, [50, 78], [(Sweep, 120)], 78 + 2),
        ],
    )
    def test_of_an_update(
        self,
        method: BaseMethodSettings,
        num_images: int,
        peaks: list[int],
        tried: list[tuple[type, int]],
        memory: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(budget, "TRIAL_PIXELS", 1)
        monkeypatch.setattr(estimating, "measure_speed", lambda *_: 20.0)
        found, given = list[tuple[type, int]](), iter(peaks)
        monkeypatch.setattr(estimating, "_peak_bytes", lambda: 10**6 * next(given))
        made = Learner.create(ts.settings(method), shape=(3, 8, 8))
        monkeypatch.setattr(
            made.trainer, "run", lambda item: found.append((type(item), len(item.data)))
        )
        estimate = estimating.estimate(made, num_new=2, num_train=num_images)
        assert found == tried
        own = 2 * num_images * 3 * 8 * 8 + 4 * made.method.state.bytes_after(2, 0)
        assert estimate.memory_bytes == 10**6 * memory + own


class TestTrials:
    @pytest.mark.parametrize(
        ("method", "side", "size"),
        [
            (ReplaySettings(base=ts.recipe(batch_size=128)), 64, 128),
            # 128·64² pixels are 32 images of 128², and a frozen backbone gets three times as many.
            (ReplaySettings(base=ts.recipe(batch_size=128)), 128, 32),
            (ReplaySettings(base=ts.recipe(batch_size=16)), 128, 16),
            (ReplaySettings(base=ts.recipe(batch_size=128)), 512, 8),
            (VARIANTS["probe"], 128, 96),
            (VARIANTS["probe"], 64, 128),
        ],
    )
    def test_large_images_are_tried_in_smaller_batches(
        self, method: BaseMethodSettings, side: int, size: int
    ) -> None:
        made = Learner.create(ts.settings(method), shape=(3, side, side))
        assert budget.trial_size(made.method, made.trainer, made.shape) == size

    @pytest.mark.parametrize(
        ("seconds", "repeats", "speed"),
        [
            ([0.4, 0.2, 0.5, 0.4], 4, 50),
            ([2.0, 2.5, 1.0], 2, 5),
            ([30.0, 1.0], 1, 1 / 3),
        ],
    )
    def test_they_are_repeated_while_they_are_short(
        self, seconds: list[float], repeats: int, speed: float
    ) -> None:
        taken = iter(seconds)
        assert budget.fastest(lambda: next(taken), 10) == pytest.approx(speed)
        assert len(list(taken)) == len(seconds) - repeats

    @pytest.mark.parametrize(
        ("seconds_each", "batches"),
        [
            # Small: one batch twice to set things up, then two batches four times.
            (0.1, [1, 1, 2, 2, 2, 2]),
            # 1 s a batch: repeats of one batch, until they have taken 4 s.
            (1.0, [1, 1, 1, 1, 1, 1]),
            (3.0, [1, 1, 1, 1]),
            (5.0, [1]),
        ],
    )
    def test_long_batches_are_tried_a_few_times(
        self, seconds_each: float, batches: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, now, tried = learner(), [0.0], list[int]()
        size = budget.real_size(made.method, made.trainer)

        def run(item: Phase) -> None:
            tried.append(len(item.data) // size)
            now[0] += seconds_each * tried[-1]

        monkeypatch.setattr(made.trainer, "run", run)
        monkeypatch.setattr(budget, "_num_threads", lambda: 1)
        monkeypatch.setattr("time.process_time", lambda: now[0])
        speed = budget.measure_speed(made.method, made.trainer, made.shape)
        assert speed == pytest.approx(size / seconds_each)
        assert tried == batches

    def test_a_frozen_trunk_is_not_trained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        backbone = BackboneSettings(name="resnet20", train="last-stages", last_stages=1)
        method = DERSettings(base=ts.recipe(), grow=ts.recipe())
        made = Learner.create(ts.settings(method, backbone=backbone), shape=(3, 8, 8))
        tried: list[Phase] = []
        monkeypatch.setattr(made.trainer, "run", tried.append)
        budget.measure_speed(made.method, made.trainer, made.shape)
        phase = tried[0]
        trained = {name: bool(part.trained()) for name, part in phase.parts.items()}
        assert trained == {"trunk": False, "backbone": True, "head": True}
