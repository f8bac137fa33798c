"""GRACE: grow, assess, compress (paper, Algorithm 1).

Where this departs from the paper or fills its gaps, beside what its authors released:

1. ``assess_on="previous"`` assesses at the end of the task before, on its augmented training
   images, as the released behaviour does; the paper's reading, ``"current"``, is the default.
2. The provisional backbone starts as a full copy of the mergeable one.
3. Weight alignment also follows Compress; the paper names it for Grow only.
4. The student's batch-norm statistics and head start afresh.
5. λ = K_old/K (the paper: "ratio of old to new"), T = 2 (not in the paper), and n_new, n_old are
   floored to whole images.
6. Singular values come from the Gram matrix, and those up to 1e-5 are dropped; ``"current"`` uses
   the test transform and a fixed order of images. The paper is silent on all of this.
7. The projection of feature distillation starts like a head; the paper does not say how.
8. Without a new class, one *refresh* phase trains a copy of the mergeable backbone with the present
   network as teacher, λ = 0.5; the threshold and the saturation it will be compared with stay.
9. Under a ceiling on the learner's bytes, a network that may not grow compresses, whatever its
   saturation, and the threshold decays as after any compression.
10. With ``relative_threshold`` the threshold is a multiple of the mergeable backbone's first
    saturation, whose level depends on images and backbone; the first assessment compresses.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final

from typing_extensions import override

from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Sweep
from grace.methods.compression import compress, distillation_phase
from grace.methods.grace_values import GraceValues
from grace.methods.growth import grow
from grace.methods.method import Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import frozen_last
from grace.methods.planning import Coming, PlannedPhase, with_teacher
from grace.nn.capacity import FeatureMoments
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.merging import bias, merge_weight, preservation
from grace.nn.threshold import Threshold
from grace.settings.methods import GraceSettings


@final
class Grace(Method[GraceSettings]):
    """Fixed backbones, then one mergeable backbone, the last of the network."""

    def __init__(
        self, settings: GraceSettings, factory: ModuleFactory, memory: ExemplarMemory
    ) -> None:
        super().__init__(settings, factory, memory)
        self.values = self.state.add_values(GraceValues())

    @property
    def threshold(self) -> Threshold:
        """The threshold τ of the next decision."""
        return self.values.threshold(self.settings)

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        outcome = yield from super().first_task(task)
        self.values.class_counts = [task.num_classes]
        yield from self._assess_ahead(task)
        return outcome

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        if task.num_new_classes == 0:
            return (yield from self._refresh(task))
        outcome = yield from self._grow_assess_compress(task)
        yield from self._assess_ahead(task)
        return outcome

    def _grow_assess_compress(self, task: Task) -> Steps[Outcome]:
        # Stage I: Grow
        expanded = yield from grow(self, task, self.settings.grow, self.settings.auxiliary_weight)

        # Stage II: Assess
        saturation = self.values.previous_saturation
        if self.settings.assess_on == "current" or saturation is None:
            saturation = yield self._assess(task)
        threshold, weight = self.threshold.value, None
        verdict, reason = self._verdict(task, saturation), self._reason(task)

        if verdict != "grow":
            # Stage III: Compress
            weight = self._student_weight(task)
            self.network = yield from compress(self, task, expanded, weight)
            self.values.class_counts[-1] += task.num_new_classes
        else:
            # The mergeable backbone becomes fixed, the provisional one mergeable.
            self.network = expanded
            self.values.class_counts.append(task.num_new_classes)
        self.values.decided(self.settings, saturation, has_grown=verdict == "grow")
        return Outcome(
            verdict=verdict,
            saturation=saturation,
            threshold=threshold,
            merge_weight=weight,
            reason=reason,
        )

    def _assess_ahead(self, task: Task) -> Steps[None]:
        """Assess for the next task, if ``assess_on`` is "previous"."""
        if self.settings.assess_on == "previous":
            self.values.previous_saturation = yield self._assess(task)

    def _assess(self, task: Task) -> Sweep:
        """Make the sweep that measures the mergeable backbone's saturation on D̃_t."""
        return Sweep(
            name="assess",
            parts=frozen_last(self.network, "mergeable"),
            data=self.with_exemplars(task),
            reducer=FeatureMoments(),
            augmented=self.settings.assess_on == "previous",
        )

    def _verdict(
        self, task: Task, saturation: float
    ) -> Literal["grow", "compress", "compress (budget)"]:
        verdict = self.threshold.verdict(saturation)
        if self.settings.expand_at is not None:
            verdict = "grow" if task.number in self.settings.expand_at else "compress"
        if verdict == "grow" and not self.has_room_to_grow(task):
            return "compress (budget)"
        return verdict

    def _reason(self, task: Task) -> str:
        """Return what decided, if it was not the saturation; else an empty text."""
        if self.settings.expand_at is None:
            return self.values.reason(self.settings)
        names = "names" if task.number in self.settings.expand_at else "does not name"
        return f"method.expand_at {names} update {task.number}"

    def _student_weight(self, task: Task) -> float | None:
        """Return the mergeable backbone's weight in the student; ``None`` for a fresh student."""
        given = {"average": 0.5, "merge": 1.0, "provisional": 0.0, "random": None}
        if self.settings.initialisation in given:
            return given[self.settings.initialisation]
        new_images = int((task.data.labels >= task.num_old_outputs).sum())
        images_per_new_class = new_images // task.num_new_classes
        images_per_old_class = len(self.memory) // max(1, task.num_old_remembered)
        return merge_weight(
            preservation(self.values.class_counts[-1], task.num_new_classes),
            bias(images_per_new_class, images_per_old_class),
            self.settings.gamma,
        )

    def _refresh(self, task: Task) -> Steps[Outcome]:
        """Learn new images of known classes; the number of backbones does not change."""
        present = self.network
        student, head = copy_of(present.backbones[-1]), copy_of(present.head)
        yield distillation_phase(
            self,
            "refresh",
            task,
            teacher=present,
            student=student,
            head=head,
            num_replaced=1,
            share=0.5,
        )
        self.network = ExpandableNetwork([*present.backbones[:-1], student], head, present.trunk)
        return Outcome(verdict="refresh", threshold=self.threshold.value)

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        plan = super().plan(coming)
        if coming.is_first or coming.num_new:
            return with_teacher(plan, "compress")
        return [replace(phase, name="refresh") for phase in plan if phase.name == "compress"]
