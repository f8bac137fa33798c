"""The model in memory: score images, learn an update, undo it."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from itertools import count
from typing import Any, final

import torch
from torch import Tensor

from grace.configs.augmentation import crops_at_random
from grace.configs.experiment import ExperimentSettings
from grace.configs.registry import resolve
from grace.data.augmentation import build_augmentation
from grace.data.images import LabelledImages
from grace.data.joined import concatenate
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.loss_meter import NonFiniteLossError
from grace.engine.phase import Phase
from grace.engine.progress import Progress
from grace.engine.ranks import Ranks
from grace.engine.trainer import Trainer
from grace.home.ceiling import Ceiling
from grace.home.creation import Creation
from grace.home.document import UpdateRecord
from grace.home.journal import Journal
from grace.learner import choosing, saving
from grace.learner.admission import Admission
from grace.learner.budget import coming_update, expected_seconds, within_budget
from grace.learner.evaluation import accuracy, scores, see
from grace.learner.given_images import AnyImages, as_images
from grace.learner.measuring import compared
from grace.learner.model_state import ModelState, Size
from grace.learner.unknown import MOST_EXEMPLARS, Recogniser, Seen, recogniser
from grace.learner.update_input import (
    UpdateInput,
    check_input,
    class_indices,
    split_validation,
)
from grace.methods.classifier import Classifier
from grace.methods.feature_cache import FeatureCache
from grace.methods.method import Method, Outcome
from grace.methods.module_factory import ModuleFactory
from grace.methods.planning import Coming
from grace.networks.preprocessing import enlargement
from grace.text.refusals import GraceError, Setting


@final
class Model:
    """A model in memory: a method with its network, images and class names; nothing on disk.

    Args:
        settings: method, backbone, memory, augmentation, seeds, engine; the scenario is not used.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel, of pixels in [0, 1].
        std: likewise.
        progress: receives the events of the work.
        is_saved: a saved version will be loaded: the backbone is not tried out before.
        chooses: choose the predictor to answer with after every update, on the held-out images;
            studies do not, as they report their method's primary predictor.
        ranks: the processes that train together, each with its own model and the same images;
            ``None``: this process alone. Only the model of the first process may have a home.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        std: Sequence[float],
        progress: Progress | None = None,
        *,
        is_saved: bool = False,
        chooses: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        # Settings that could be saved but not loaded again are refused at once.
        self.creation = Creation.of(saving.portable(settings), shape, mean, std)
        self.settings = settings
        self.shape = shape
        self.chooses = chooses
        self.mean = tuple(mean)
        self.std = tuple(std)
        if crops_at_random(settings.data.augmentation) and shape[1] != shape[2]:
            raise GraceError(
                f"data.augmentation={settings.data.augmentation} crops squares, but the images "
                f"are {shape[2]}×{shape[1]} pixels",
                setting=Setting("data.image_size"),
            )
        self.enlarge = enlargement(settings.backbone, shape)
        augmentation = build_augmentation(
            settings.data.augmentation, self.mean, self.std, shape[1], self.enlarge
        )
        self.trainer = Trainer(settings.engine, augmentation, settings.seeds.data, progress, ranks)
        build: type[Method[Any]] = resolve("method", settings.method.name)
        keeps_all = settings.method.traits.memory == "all images"
        factory = ModuleFactory(settings, shape[0], self.trainer.device)
        if not is_saved:
            factory.refuse_unfit_backbone(shape)
        memory = ExemplarMemory(settings.memory, keep_all=keeps_all)
        self.state = ModelState(build(settings.method, factory, memory))
        method, is_bounded = self.state.method, settings.memory.max_mb is not None
        # Two bytes for each number of the features that are saved beside an image.
        width = factory.sketch.feature_dim if is_bounded and method.features is not None else 0
        self.admission = Admission(settings, shape, self.trainer.ranks, 2 * width)

    @property
    def ceiling(self) -> Ceiling | None:
        """The ceiling on the bytes of a version; ``None``: there is no ceiling."""
        return self.admission.ceiling

    def check_memory(self, num_classes: int) -> None:
        """Refuse a memory that cannot hold one exemplar of each of ``num_classes`` classes."""
        if self.settings.method.traits.memory != "none":
            self.state.method.memory.quota(num_classes)

    def size(self) -> Size:
        """Count the network's backbones, parameters and bytes; all 0 before the first update."""
        if not self.state.method.classifiers():
            return Size()
        network = self.state.method.network
        counts = network.num_parameters()
        return Size(len(network.backbones), counts.backbones, counts.heads, network.num_bytes())

    def scores(self, images: AnyImages) -> dict[str, Tensor]:
        """Score images with every predictor: (N, K) by name, the primary predictor first.

        Raises:
            GraceError: for images of another shape, or scores that are not finite.
        """
        classifiers = dict(self.state.method.classifiers())
        return _finite(scores(self.trainer, classifiers, self._unlabelled(images)))

    def decide(self, images: AnyImages) -> Tensor:
        """Score images with the predictor that was chosen, calibrated: (N, K).

        Raises:
            GraceError: for images of another shape, or scores that are not finite.
        """
        return _finite(scores(self.trainer, {"": self.classifier()}, self._unlabelled(images)))[""]

    def classifier(self) -> Classifier:
        """Return the predictor that was chosen, calibrated."""
        return choosing.classifier_of(self.state.method, self.state.predictor)

    def learn(
        self,
        given: UpdateInput,
        journal: Journal | None = None,
        save: Callable[[UpdateRecord], None] | None = None,
    ) -> UpdateRecord:
        """Learn one update; if it fails or is rejected, the model stays as it was.

        Args:
            given: the images, checked.
            journal: saves finished work, so that a killed process can go on.
            save: called with the record at the end, before a rejected update is undone.
        """
        before = self.state.copy()
        try:
            update = self._carry_out(given, journal)
            self.state.history.append(update)
            if self.ceiling or save is not None:
                size = saving.count_object_bytes(self.contents())
                update = update.model_copy(update={"num_bytes": size})
            # All processes must agree on whether the update is accepted.
            update = self._as_in_first_process(update)
            self.state.history[-1] = update
            if save is not None:
                save(update)
        except BaseException:
            self.state = before
            raise
        if not update.accepted:
            self.state = before
        return update

    def check(self, given: UpdateInput) -> None:
        """Refuse what ``learn`` would refuse before any training; change nothing.

        Raises:
            GraceError: for an update that this model cannot learn.
        """
        before = self.state.copy()
        try:
            task, _ = self.admission.admit(self.state, given)
            # A method refuses a task before its first phase, and trains nothing by itself.
            next(self.state.method.learn(task))
        finally:
            self.state = before

    def recall(self, images: AnyImages, labels: Sequence[str]) -> None:
        """Give back its images to a loaded model that keeps all of them: they are not saved.

        Held-out images and images of forgotten classes are left out.
        """
        state, memory = self.state, self.state.method.memory
        given = check_input(images, labels, None, self.shape, settings=self.settings.data)
        index = class_indices(state.class_names, given.labels)
        assert len(index) == len(state.class_names), "these classes were never learnt"
        data, _ = split_validation(given, index, state.held_out, memory, 0, 0, 0)
        hidden = torch.isin(data.labels, torch.tensor(sorted(state.forgotten)))
        if bool(hidden.any()):
            data = data.subset((~hidden).nonzero().flatten())
        memory.keep(data)

    def hide(self, classes: set[int]) -> None:
        """Forget some classes, by index: drop their images and never predict them."""
        self.state.forgotten |= classes
        for index in classes:
            self.state.held_out.forget(index)
        self.mask_forgotten()
        self.calibrate(self.state.recogniser.score.name)

    def mask_forgotten(self) -> None:
        """Mask exactly the forgotten classes, and drop their exemplars.

        Their rows of the head and all other weights stay.
        """
        for index in self.state.forgotten:
            self.state.method.memory.forget(index)
        self.state.method.state.forget(self.state.forgotten)

    def calibrate(self, chosen: str | None = None) -> None:
        """Fit the score of unknown images, and compute that of the held-out images again.

        Args:
            chosen: name of the score; ``None``: the best one is chosen, which takes seconds with
                many classes.
        """
        state, data = self.state, self.state.held_out.data()
        state.recogniser = Recogniser()
        if data is None or not state.method.classifiers():
            return
        most_bytes = math.inf
        if self.ceiling is not None:
            others = saving.count_object_bytes(self.contents())
            most_bytes = self.ceiling.num_bytes - self.admission.reserved - others
        exemplars, cache = self.exemplars(), state.method.features
        seen = None if exemplars is None else self.see(exemplars, cache)
        state.recogniser = recogniser(seen, self.see(data, cache), most_bytes, chosen)

    def recognise(self, images: AnyImages) -> tuple[Tensor, Tensor]:
        """Return the scores (N, K) of ``decide``, and how familiar images look (N,)."""
        seen = self.see_images(images)
        return seen.logits, self.state.recogniser.score(seen.features, seen.logits)

    def see_images(self, images: AnyImages) -> Seen:
        """Compute what the chosen predictor makes of images without labels."""
        return self.see(self._unlabelled(images))

    def see(self, data: LabelledImages, cache: FeatureCache | None = None) -> Seen:
        """Compute what the chosen predictor makes of images; refuse damaged weights.

        Args:
            data: N images.
            cache: remembers their features, if the backbones never change.
        """
        seen = see(self.trainer, self.classifier(), data, cache)
        _finite({"features": seen.features, "": seen.logits})
        return seen

    def exemplars(self) -> LabelledImages | None:
        """Return the first exemplars of every class, equally many; ``None`` without any."""
        memory = self.state.method.memory
        most = max(1, MOST_EXEMPLARS // max(1, len(memory.classes)))
        parts = []
        for index in memory.classes:
            images = memory.of_class(index)
            images = images.subset(torch.arange(min(most, len(images))))
            parts.append(LabelledImages(images, torch.full((len(images),), index)))
        return concatenate(parts) if parts else None

    def contents(self) -> saving.Contents:
        """Return the contents of a saved version of this model."""
        state = self.state
        return saving.Contents(
            settings=self.settings,
            shape=self.shape,
            mean=self.mean,
            std=self.std,
            class_names=state.class_names,
            forgotten=state.forgotten,
            history=state.history,
            method=state.method,
            held_out=state.held_out,
            recogniser=state.recogniser,
            parent=state.version,
            changed=state.changed,
        )

    def _unlabelled(self, images: AnyImages) -> LabelledImages:
        """Return images of any form, (N, C, H, W), with labels that mean nothing."""
        data = as_images(images, self.shape, self.settings.data)
        return LabelledImages(data, torch.zeros(len(data), dtype=torch.int64))

    def _as_in_first_process(self, update: UpdateRecord) -> UpdateRecord:
        """Return the first process's record of an update in all processes."""
        ranks = self.trainer.ranks
        if not ranks.are_several:
            return update
        return UpdateRecord.model_validate_json(ranks.broadcast_value(update.model_dump_json()))

    def _carry_out(self, given: UpdateInput, journal: Journal | None) -> UpdateRecord:
        """Learn one update and measure its cost; a failure leaves the model half changed."""
        started = time.perf_counter()
        state = self.state
        task, held_out = self.admission.admit(self.state, given)
        present = set(task.data.labels.tolist())
        revived = sorted(state.forgotten & present)
        names = [*class_indices(state.class_names, given.labels)]
        new_names, revived_names = names[task.num_old_outputs :], [names[i] for i in revived]
        old = set(range(task.num_old_outputs)) - state.forgotten
        size = self.size()
        coming = coming_update(
            state.method,
            len(new_names),
            len(task.data),
            is_first=task.number == 1,
            num_backbones=size.num_backbones,
        )
        old_before = self._are_right(held_out.data(old)) if old else None
        state.forgotten -= present
        state.held_out = held_out
        state.class_names = names
        self.mask_forgotten()
        state.method.memory.record_originals(task.data.labels)
        with self._budgeted(coming), journal.blamed() if journal else nullcontext():
            outcome, teacher, counts = self._perform(task, journal)
        self._refuse_diverged(task)
        live = held_out.data(set(range(task.num_classes)) - state.forgotten)
        if self.chooses:
            self._choose(live, counts)
        self.calibrate()
        self._forget_features()
        compressed = outcome.verdict in ("compress", "compress (budget)")
        now = self.size()
        return UpdateRecord(
            task=task.number,
            new_class_names=tuple(new_names),
            revived_class_names=tuple(revived_names),
            outcome=outcome,
            work=tuple(self.trainer.work),
            num_images=len(task.data),
            num_backbones=(size.num_backbones, now.num_backbones),
            num_parameters=(size.num_parameters, now.num_parameters),
            num_exemplars=len(state.method.memory),
            accuracy=compared(
                old_before,
                self._are_right(live),
                torch.empty(0) if live is None else live.labels,
                old,
                teacher=teacher,
                student=self._student(live) if compressed else None,
            ),
            **given.limits.given,
            predictor=state.predictor if self.chooses else None,
            seconds=time.perf_counter() - started,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _budgeted(self, coming: Coming) -> AbstractContextManager[None]:
        """Say how long the training will take, and return the context that bounds it."""
        method, budget = self.state.method, self.settings.budget
        expected = expected_seconds(method, budget, coming)
        if expected is not None:
            self.trainer.progress.training_expected(expected)
        return within_budget(method, budget, coming)

    def _forget_features(self) -> None:
        """Keep the features of stored images only.

        A saved learner has no others, so an update that is repeated sweeps the same images.
        """
        method, held = self.state.method, self.state.held_out
        if method.features is not None:
            stored = map(method.memory.of_class, method.memory.classes)
            method.features.retain([*stored, *map(held.of_class, held.classes)])

    def _refuse_diverged(self, task: Task) -> None:
        """Refuse a network whose scores overflow, though its weights and losses are finite.

        Raises:
            NonFiniteLossError: naming the last phase that trained.
        """
        trained = [work for work in self.trainer.work if work.epochs]
        method = self.state.method
        if not trained or not method.classifiers():
            return
        few = task.data.subset(torch.arange(min(16, len(task.data))))
        primary = next(iter(method.classifiers().values()))
        if not bool(scores(self.trainer, {"": primary}, few, method.features)[""].isfinite().all()):
            raise NonFiniteLossError(
                f"scores are not finite after phase '{trained[-1].name}', epoch "
                f"{trained[-1].epochs}",
                "lower the learning rate of this phase's recipe, or its weight_decay",
            )

    def _perform(
        self, task: Task, journal: Journal | None
    ) -> tuple[Outcome, float | None, Sequence[int]]:
        """Run the method.

        Returns:
            Its outcome, its teacher's accuracy on the held-out images, and the number of training
            images of each class in its last phase.
        """
        self.trainer.start_task(task.number)
        steps = self.state.method.learn(task, self.settings.probe)
        result: Any = None
        teacher: float | None = None
        labels = torch.empty(0, dtype=torch.int64)
        for number in count():
            try:
                item = steps.send(result)
            except StopIteration as stop:
                outcome: Outcome = stop.value
                counts: list[int] = torch.bincount(labels, minlength=task.num_classes).tolist()
                return outcome, teacher, counts
            if isinstance(item, Phase) and item.teacher is not None:
                network = item.teacher
                expert = Classifier(network.extractors, network.head)
                teacher = accuracy(self.trainer, expert, self.state.held_out.data())
            if isinstance(item, Phase):
                labels = item.data.labels
            run = self.trainer.run
            result = journal.perform(number, item, self.trainer) if journal else run(item)
        raise AssertionError

    def _choose(self, data: LabelledImages | None, counts: Sequence[int]) -> None:
        """Choose the predictor on held-out images, and calibrate it; see ``choosing``.

        Args:
            data: held-out images of all live classes; ``None``: the choice stays.
            counts: training images of each class in the last phase.
        """
        state, method = self.state, self.state.method
        if data is None or not method.classifiers():
            return
        listed = choosing.candidates(method, counts)
        named = {str(i): choosing.classifier_of(method, own) for i, own in enumerate(listed)}
        found = _finite(scores(self.trainer, named, data, method.features))
        by_predictor = {own: found[str(i)] for i, own in enumerate(listed)}
        chosen = choosing.choose(state.predictor, by_predictor, data.labels)
        state.predictor = choosing.calibrated(chosen, by_predictor[chosen], data.labels)

    def _decide_held_out(self, data: LabelledImages) -> Tensor:
        """Score held-out images with the chosen predictor, (N, K); their features may be known."""
        known = self.state.method.features
        return _finite(scores(self.trainer, {"": self.classifier()}, data, known))[""]

    def _are_right(self, data: LabelledImages | None) -> Tensor | None:
        """Return ``True`` for each held-out image (N,) that is predicted as its label."""
        if data is None or not self.state.method.classifiers():
            return None
        return self._decide_held_out(data).argmax(dim=1) == data.labels

    def _student(self, data: LabelledImages | None) -> float | None:
        """Return the accuracy of the primary predictor, to be compared with the teacher's."""
        primary = next(iter(self.state.method.classifiers().values()))
        return accuracy(self.trainer, primary, data, self.state.method.features)


def _finite(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return features or scores (N, ·) by name; refuse any that are not finite."""
    if not all(bool(values.isfinite().all()) for values in found.values()):
        raise GraceError("the scores are not finite: the weights are damaged")
    return found
