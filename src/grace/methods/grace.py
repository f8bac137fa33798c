"""GRACE: grow a provisional backbone, assess the mergeable one, compress where there is room.

Algorithm. 1. First task: one backbone and head. 2. *Grow*: a provisional backbone learns beside the
frozen ones. 3. *Assess* the mergeable backbone by its normalised effective rank. 4. At or above the
threshold, keep both and reset it; below it, *compress* both into a student, and decay it.

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

Expect accuracy near DER's with fewer parameters; a compression costs its own epochs.

Source: Garcia-Castañeda, Irureta, Imaz, Lojo, arXiv:2603.08426.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self, final

import torch
from pydantic import Field, model_validator
from typing_extensions import override

from grace.base.errors import GraceError
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Part, Phase, Sweep
from grace.methods.classification import class_loss
from grace.methods.growth import grow
from grace.methods.method import Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import frozen_last, frozen_network
from grace.methods.planning import Coming, PlannedPhase, with_teacher
from grace.methods.state import StateValues
from grace.nn.backbone import Backbone
from grace.nn.capacity import FeatureMoments
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.heads import Head, align_weights
from grace.nn.losses.distillation import (
    distillation_share,
    feature_distillation,
    logit_distillation,
)
from grace.nn.merging import bias, merge_backbones, merge_weight, preservation
from grace.nn.threshold import Threshold
from grace.settings.method import AligningSettings, ThresholdRule, Traits
from grace.settings.recipe import Recipe, multistep


@final
class Grace(Method):
    """Fixed backbones, then one mergeable backbone, the last of the network."""

    traits = Traits(freezes_old_network=True, learns_known_classes=True, takes_frozen_trunk=True)

    variants = {
        "": {"expand_at": (2,)},
        # A threshold of 1 is above every saturation, 0 above none.
        "compresses": {"threshold": 1.0},
        "grows": {"threshold": 0.0},
        "previous": {"assess_on": "previous", "threshold": 1.0},
    }
    exceptions = {
        "changes": {"compress": "the student has one backbone less and a fresh head over them"}
    }

    class Settings(AligningSettings):
        needs = (
            ("threshold|threshold_decay|relative_threshold", "expand_at", "none"),
            ("threshold", "relative_threshold", "none"),
            ("gamma", "initialisation", "importance"),
            ("logit_weight|temperature", "logit_distillation", "true"),
            ("feature_weight", "feature_distillation", "true"),
        )

        grow: Recipe = multistep(170, 80, 120, 150)
        """recipe of Grow"""
        compress: Recipe = Recipe(epochs=130, schedule="cosine")
        """recipe of Compress"""
        auxiliary_weight: float = Field(1.0, ge=0)
        """weight of the auxiliary head's loss in Grow (Eq. 3: 1). Higher: new features separate new
        from old classes more; 0: no auxiliary loss"""
        threshold: float = Field(0.6, ge=0, le=1)
        """τ₁: the network expands at this saturation or above. Lower: more backbones; 0: every task
        expands; 1: nearly every task compresses"""
        threshold_decay: float = Field(0.96, gt=0, le=1)
        """ρ: factor on the threshold after each compression. Lower: an expansion comes after fewer
        compressions; 1: the threshold never changes"""
        relative_threshold: float | None = Field(None, gt=0)
        """the network expands when the saturation is this many times that of the mergeable
        backbone's first assessment, which always compresses; threshold_decay acts on it too. Lower:
        more backbones; none: the threshold decides (the paper)"""
        assess_on: Literal["current", "previous"] = "current"
        """current: after Grow, on this task's images and exemplars (the paper); previous: at the
        end of the task before, on its augmented images (released behaviour)"""
        expand_at: tuple[int, ...] | None = None
        """tasks (from 2) that expand, while all others compress; saturation is only recorded. none:
        the saturation decides"""
        gamma: float = Field(5.0, gt=0)
        """γ: exponent of the power mean of P and B. Higher: w is closer to the larger of the two"""
        initialisation: Literal["importance", "average", "merge", "provisional", "random"] = (
            "importance"
        )
        """student backbone: weighted by w, by 1/2, a copy of one backbone, or fresh"""
        logit_distillation: bool = True
        """true: Compress pulls the student's logits to the teacher's (KL); false: not"""
        feature_distillation: bool = True
        """true: Compress pulls the student's features to the teacher's (MSE); false: not"""
        logit_weight: float = Field(0.4, ge=0)
        """α: weight of logit distillation. Higher: the student's logits are closer to the
        teacher's, and labels count less"""
        feature_weight: float = Field(1.6, ge=0)
        """β: weight of feature distillation. Higher: the student's features are closer to the
        teacher's, and labels count less"""
        temperature: float = Field(2.0, gt=0)
        """T: softmax temperature of the distillation. Higher: small probabilities of the teacher
        count more"""
        scale_cross_entropy: bool = True
        """true: keep the factor 1 − λ on the cross-entropy if both distillations are off; false:
        drop it"""

        @model_validator(mode="after")
        def _expansions_are_later_tasks(self) -> Self:
            tasks = self.expand_at
            if tasks is not None and (
                list(tasks) != sorted(set(tasks)) or any(t < 2 for t in tasks)
            ):
                raise GraceError(
                    f"expand_at {list(tasks)} must increase and start at task 2 or later"
                )
            return self

        @property
        @override
        def threshold_rule(self) -> ThresholdRule | None:
            if self.relative_threshold is not None:
                return None
            return ThresholdRule(initial=self.threshold, decay=self.threshold_decay)

        @property
        @override
        def given_expansions(self) -> tuple[int, ...] | None:
            return self.expand_at

        @override
        def without_threshold(self) -> Self | None:
            if self.relative_threshold is not None:
                return None
            usual = {"threshold": 0.0, "threshold_decay": 1.0, "expand_at": None}
            return self.model_copy(update=usual)

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
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


@final
class GraceValues(StateValues):
    """What GRACE remembers of its decisions and backbones."""

    compressions: int = Field(0, ge=0)
    """Number of compressions since the last expansion."""
    class_counts: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """For each backbone, the number of classes that it was trained to represent."""
    previous_saturation: float | None = Field(None, ge=0, le=1)
    first_saturation: float | None = Field(None, ge=0, le=1)
    """Of the mergeable backbone's first assessment, if later ones are compared with it."""

    @override
    def problem(self, num_backbones: int, num_classes: int) -> str | None:
        is_sound = len(self.class_counts) == num_backbones
        return None if is_sound else "does not count the classes of every backbone"

    def threshold(self, settings: Grace.Settings) -> Threshold:
        """Return the threshold τ of the next decision."""
        initial, relative = settings.threshold, settings.relative_threshold
        if relative is not None:
            first = self.first_saturation
            # The first assessment has nothing to be compared with.
            initial = 1.0 if first is None else min(1.0, relative * first)
        decay, compressions = settings.threshold_decay, self.compressions
        return Threshold(initial=initial, decay=decay, compressions=compressions)

    def decided(self, settings: Grace.Settings, saturation: float, *, has_grown: bool) -> None:
        """Remember a decision.

        Args:
            settings: say whether later saturations are compared with the first.
            saturation: of the mergeable backbone.
            has_grown: the mergeable backbone became fixed; otherwise it was compressed.
        """
        after = self.threshold(settings).after("grow" if has_grown else "compress")
        self.compressions = after.compressions
        if has_grown:
            self.first_saturation = None
        elif settings.relative_threshold is not None and self.first_saturation is None:
            self.first_saturation = saturation

    def reason(self, settings: Grace.Settings) -> str:
        """Return why the next decision is no comparison; an empty text if it is one."""
        if settings.relative_threshold is None or self.first_saturation is not None:
            return ""
        return "later saturations will be compared with the first one of this backbone"


def compress(
    method: Grace, task: Task, expanded: ExpandableNetwork, weight: float | None
) -> Steps[ExpandableNetwork]:
    """Distil the expanded network into one with a backbone less; return it.

    The student backbone starts as the weighted mean of the mergeable and the provisional backbone,
    or as a fresh one. Its head starts fresh.

    Args:
        method: gives settings, exemplars and fresh modules.
        task: its images are trained on.
        expanded: the teacher.
        weight: of the mergeable backbone, in [0, 1]; ``None``: the student starts fresh. Higher:
            the student is closer to the mergeable backbone.
    """
    *fixed, mergeable, provisional = expanded.backbones
    if weight is None:
        student = method.factory.branch("student", task.number)
    else:
        student = merge_backbones(mergeable, provisional, weight)
    head = method.class_head(task, expanded.feature_dim - provisional.feature_dim, "student")
    yield distillation_phase(
        method,
        "compress",
        task,
        teacher=expanded,
        student=student,
        head=head,
        num_replaced=2,
        share=distillation_share(task.num_old_remembered, task.num_remembered),
    )
    if method.settings.aligns_weights:
        align_weights(head, task.num_new_classes)
    return ExpandableNetwork([*fixed, student], head, expanded.trunk)


def distillation_phase(
    method: Grace,
    name: str,
    task: Task,
    *,
    teacher: ExpandableNetwork,
    student: Backbone,
    head: Head,
    num_replaced: int,
    share: float,
) -> Phase:
    """Make the phase that trains one student backbone in place of the teacher's last ones.

    All other backbones are shared and frozen. L_com = λ(α·L_kd + β·L_feat) + (1 − λ)·L_ce (paper
    Eq. 11), with λ = ``share``. The teacher's backbones are computed once for both networks.

    Args:
        method: gives settings, exemplars and fresh modules.
        name: of the phase.
        task: its images are trained on.
        teacher: frozen.
        student: the backbone that trains.
        head: the student network's head, trained.
        num_replaced: how many of the teacher's last backbones the student replaces.
        share: λ in [0, 1]. Higher: the teacher counts more and the labels less.
    """
    settings, data = method.settings, method.with_exemplars(task)
    classify = class_loss(method.settings, method.factory, task, data)
    parts = frozen_network(teacher, has_head=settings.logit_distillation)
    features = [name for name in parts if name not in ("old.head", "trunk")]
    source = "images" if teacher.trunk is None else "trunk"
    fixed, replaced = features[:-num_replaced], features[-num_replaced:]
    parts |= {"student": Part(student, [source]), "head": Part(head, [*fixed, "student"])}
    if settings.feature_distillation:
        width = sum(backbone.feature_dim for backbone in teacher.backbones[-num_replaced:])
        projection = method.factory.linear(student.feature_dim, width, "projection", task.number)
        parts["projection"] = Part(projection, ["student"])
    distils = settings.logit_distillation or settings.feature_distillation
    scale = 1 - share if distils or settings.scale_cross_entropy else 1.0

    def objective(batch: Batch) -> dict[str, Loss]:
        logits = batch["head"]
        losses = {"classification": Loss(classify(logits, batch.labels), scale)}
        if settings.logit_distillation:
            value = logit_distillation(logits, batch["old.head"], settings.temperature)
            losses["logits"] = Loss(value, share * settings.logit_weight)
        if settings.feature_distillation:
            goal = torch.cat([batch[name] for name in replaced], dim=1)
            value = feature_distillation(batch["projection"], goal)
            losses["features"] = Loss(value, share * settings.feature_weight)
        return losses

    return Phase(
        name=name,
        parts=parts,
        objective=objective,
        recipe=settings.compress,
        data=data,
        teacher=teacher if num_replaced > 1 else None,
    )
