"""What an update would take."""

import pytest

from grace.configs.methods import (
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
from grace.learner import estimate as estimating
from grace.learner.learner import Learner
from grace.methods.planning import Coming, PlannedPhase
from support import tiny_streams as ts
from support.contract import VARIANTS

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def learner() -> Learner:
    method = GraceSettings(base=ts.recipe(2), grow=ts.recipe(3), compress=ts.recipe(5))
    return Learner.create(ts.settings(method), shape=(3, 8, 8))


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
