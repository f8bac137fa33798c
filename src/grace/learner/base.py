"""The learner in memory: update, predict, measure."""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from grace.configs.augmentation import crops_at_random
from grace.configs.experiment import ExperimentSettings
from grace.configs.registry import resolve
from grace.data.augmentation import build_augmentation
from grace.data.images import LabelledImages
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Phase
from grace.engine.progress import Progress
from grace.engine.ranks import Ranks
from grace.engine.trainer import Trainer
from grace.home.ceiling import Ceiling, reserved_bytes
from grace.home.document import Accuracies, UpdateRecord
from grace.home.journal import Journal
from grace.home.store import Creation
from grace.learner import saving
from grace.learner.evaluation import accuracy, scores
from grace.learner.export import Preprocessing
from grace.learner.exporting import Exported, export_checked
from grace.learner.held_out import HeldOut
from grace.learner.unknown import cutoff, familiarity
from grace.learner.update_input import (
    AnyImages,
    UpdateInput,
    as_images,
    check_input,
    class_indices,
    split_validation,
)
from grace.methods.classifier import Classifier
from grace.methods.method import Method, Outcome
from grace.methods.module_factory import ModuleFactory
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True)
class Size:
    """What a learner's network holds; images are not counted."""

    num_backbones: int = 0
    backbone_parameters: int = 0
    head_parameters: int = 0
    weight_bytes: int = 0
    """Weights and buffers."""

    @property
    def num_parameters(self) -> int:
        """Of backbones and heads together."""
        return self.backbone_parameters + self.head_parameters


class BaseLearner(ABC):
    """A classifier that learns class after class, in memory.

    What carries an update out here leaves a learner half changed where it fails: whoever calls it
    remembers what was before, and restores that.

    It is made with the arguments of :class:`grace.learner.learner.Learner`.
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
        ranks: Ranks | None = None,
    ) -> None:
        # What could not be brought back is refused at once.
        self._created_as = Creation.of(saving.portable(settings), shape, mean, std)
        self.settings = settings
        self.shape = shape
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.class_names: list[str] = []
        self.forgotten: set[int] = set()
        self.history: list[UpdateRecord] = []
        self.held_out = HeldOut()
        self.version: int | None = None
        """The saved version that this learner is; none before it is one."""
        self.familiarities = torch.empty(0)
        """Of the held-out images (n,), ascending: what is unknown is told by them."""
        if crops_at_random(settings.data.augmentation) and shape[1] != shape[2]:
            raise GraceError(
                f"data.augmentation={settings.data.augmentation} crops squares, but the images "
                f"are {shape[2]}×{shape[1]} pixels",
                "set data.image_size",
            )
        augmentation = build_augmentation(settings.data.augmentation, self.mean, self.std, shape[1])
        self.trainer = Trainer(settings.engine, augmentation, settings.seeds.data, progress, ranks)
        build: type[Method[Any]] = resolve("method", settings.method.name)
        traits = settings.method.traits
        memory = ExemplarMemory(settings.memory, keep_all=traits.memory == "all images")
        factory = ModuleFactory(settings, shape[0], self.trainer.device)
        if not is_saved:
            factory.refuse_unfit_backbone(shape)
        self.method: Method[Any] = build(settings.method, factory, memory)
        self._ceiling: Ceiling | None = None
        if settings.memory.max_mb is not None:
            channels, height, width = shape
            self._ceiling = Ceiling(settings.memory.max_mb, channels * height * width)
            if memory.keep_all:
                raise GraceError(
                    f"{settings.method.name} keeps all images, which no ceiling can bound",
                    "remove memory.max_mb (--max-mb) or choose another method",
                )

    @property
    @abstractmethod
    def place(self) -> Path | None:
        """Directory in which it is kept; none if it lives in memory alone."""

    def size(self) -> Size:
        """Count the network's backbones, parameters and bytes; all 0 before the first update."""
        if not self.method.classifiers():
            return Size()
        network = self.method.network
        counts = network.num_parameters()
        return Size(len(network.backbones), counts.backbones, counts.heads, network.num_bytes())

    def scores(self, images: AnyImages) -> dict[str, Tensor]:
        """Score images with every predictor: (N, K) by name, the primary predictor first."""
        data = as_images(images, self.shape)
        unknown = torch.zeros(len(data), dtype=torch.int64)
        classifiers = dict(self.method.classifiers())
        found = scores(self.trainer, classifiers, LabelledImages(data, unknown))
        if not all(bool(own.isfinite().all()) for own in found.values()):
            where = f"of '{self.place}' " if self.place else ""
            raise GraceError(f"the scores {where}are not finite: its weights are damaged")
        return found

    def decision_function(self, images: AnyImages) -> Tensor:
        """Score images with the primary predictor, (N, K); a forgotten class scores -10⁴.

        Raises:
            ValueError: before the first update.
        """
        self._refuse_ignorance()
        return next(iter(self.scores(images).values()))

    def predict_proba(self, images: AnyImages) -> Tensor:
        """Give class probabilities (N, K) by the primary predictor's softmax.

        Raises:
            ValueError: before the first update.
        """
        return self.decision_function(images).softmax(dim=1)

    def predict(self, images: AnyImages) -> list[str]:
        """Name the class of each image."""
        return [self.class_names[int(i)] for i in self.predict_proba(images).argmax(dim=1)]

    def unknown(self, images: AnyImages, false_alarms: float = 0.05) -> list[bool]:
        """Tell which images are unlike anything learnt; see ``cutoff_of_unknown``."""
        return self.is_unknown(self.decision_function(images), false_alarms)

    def is_unknown(self, image_scores: Tensor, false_alarms: float = 0.05) -> list[bool]:
        """Tell it from the scores (N, K) that ``decision_function`` gave.

        At most a share ``false_alarms`` of images of learnt classes is called unknown.

        Raises:
            ValueError: if too few images are held out to promise that.
        """
        lowest = cutoff(self.familiarities, false_alarms)
        return [bool(own < lowest) for own in familiarity(image_scores)]

    def score(self, images: AnyImages, labels: Sequence[str]) -> float:
        """Share of the images that are given their label, in [0, 1]."""
        predictions = self.predict(images)
        if len(predictions) != len(labels):
            raise GraceError(f"{len(predictions)} images but {len(labels)} labels", "give one each")
        right = sum(p == str(label) for p, label in zip(predictions, labels, strict=True))
        return right / len(labels)

    def export(self, path: str | Path, *, replace: bool = False) -> Exported:
        """Write the primary predictor as an ONNX file, and check it on images that are held.

        Args:
            path: file to write; its folder exists.
            replace: whether a file that is there may be replaced.

        Raises:
            ValueError: before the first update, if the file is there, or if it cannot be exported.
        """
        self._refuse_ignorance()
        if Path(path).exists() and not replace:
            raise GraceError(f"'{path}' exists already", "choose another name or remove it")
        return export_checked(
            self.method,
            self.trainer,
            self.held_out,
            Preprocessing(self.shape, self.mean, self.std),
            self.class_names,
            sorted(self.forgotten),
            Path(path),
            version=self.version or 0,
        )

    def check_memory(self, num_classes: int) -> None:
        """Refuse a memory that cannot hold one exemplar of each of ``num_classes`` classes."""
        if self.settings.method.traits.memory != "none":
            self.method.memory.quota(num_classes)

    def recall(self, images: AnyImages, labels: Sequence[str]) -> None:
        """Give a loaded learner that keeps every image those it learnt from: none are saved.

        Those that are held out, or of forgotten classes, are left out.
        """
        given = check_input(images, labels, None, self.shape)
        index = class_indices(self.class_names, given.labels)
        assert len(index) == len(self.class_names), "these classes were never learnt"
        data, _ = split_validation(given, index, self.held_out, self.method.memory, 0, 0, 0)
        hidden = torch.isin(data.labels, torch.tensor(sorted(self.forgotten)))
        if bool(hidden.any()):
            data = data.subset((~hidden).nonzero().flatten())
        self.method.memory.keep(data)

    def _carry_out(self, given: UpdateInput, journal: Journal | None) -> UpdateRecord:
        started = time.perf_counter()
        number, num_old = len(self.history) + 1, len(self.class_names)
        index = class_indices(self.class_names, given.labels)
        if number == 1 and len(index) < 2:
            raise GraceError("the first update needs images of at least two classes")
        seed, wanted = self.settings.seeds.exemplars, self.settings.memory.validation
        memory = self.method.memory
        data, held_out = split_validation(given, index, self.held_out, memory, wanted, seed, number)
        present = set(data.labels.tolist())
        revived = sorted(self.forgotten & present)
        task = Task(
            number=number,
            data=data,
            new_classes=range(num_old, len(index)),
            is_last=given.is_last,
            forgotten=frozenset(self.forgotten - present),
        )
        new_names = list(index)[num_old:]
        revived_names = [self.class_names[i] for i in revived]
        self._refuse_unfit(task, new_names, revived_names, held_out)

        old = set(range(num_old)) - self.forgotten
        size = self.size()
        old_before = self._accuracy(held_out, old)
        self.forgotten -= present
        self.held_out = held_out
        self.class_names = list(index)
        self._mask_forgotten()
        self.method.memory.record_originals(data.labels)
        with journal.blamed() if journal else nullcontext():
            outcome, teacher = self._perform(task, journal)
        self.familiarities = self._calibrated()
        live = set(range(task.num_classes)) - self.forgotten
        compressed = outcome.verdict in ("compress", "compress (budget)")
        new = {*task.new_classes, *revived}
        now = self.size()
        return UpdateRecord(
            task=number,
            new_class_names=tuple(new_names),
            revived_class_names=tuple(revived_names),
            outcome=outcome,
            work=tuple(self.trainer.work),
            num_images=len(data),
            num_backbones=(size.num_backbones, now.num_backbones),
            num_parameters=(size.num_parameters, now.num_parameters),
            num_exemplars=len(self.method.memory),
            accuracy=Accuracies(
                old_before=old_before,
                old_after=self._accuracy(held_out, old),
                new_after=self._accuracy(held_out, new),
                num_old=sum(held_out.count(i) for i in old),
                num_new=sum(held_out.count(i) for i in new),
                teacher=teacher,
                student=self._accuracy(held_out, live) if compressed else None,
            ),
            max_drop=given.max_drop,
            seconds=time.perf_counter() - started,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _perform(self, task: Task, journal: Journal | None) -> tuple[Outcome, float | None]:
        """Run the method; also measure what a phase distils from, on the held-out images."""
        self.trainer.start_task(task.number)
        steps = self.method.learn(task)
        result: Any = None
        teacher: float | None = None
        for number in count():
            try:
                item = steps.send(result)
            except StopIteration as stop:
                outcome: Outcome = stop.value
                return outcome, teacher
            if isinstance(item, Phase) and item.teacher is not None:
                network = item.teacher
                expert = Classifier(network.extractors, network.head)
                teacher = accuracy(self.trainer, expert, self.held_out.data())
            run = self.trainer.run
            result = journal.perform(number, item, self.trainer) if journal else run(item)
        raise AssertionError

    def _refuse_unfit(
        self,
        task: Task,
        new_names: Sequence[str],
        revived_names: Sequence[str],
        held_out: HeldOut,
    ) -> None:
        """Refuse a task that memory or ceiling cannot hold, and say what exemplars may take."""
        memory, traits = self.method.memory, self.settings.method.traits
        wants = traits.memory != "none"
        if memory.keep_all and self.history and len(memory.classes) < task.num_old_remembered:
            raise GraceError(
                f"a saved {self.settings.method.name} learner does not have the images it learnt "
                "from and cannot go on",
                "create a new one with all images",
            )
        if self._ceiling is not None:
            portable = saving.portable(self.settings)
            reserved = reserved_bytes(portable, self.history, new_names, revived_names)
            # One number per held-out image, by which what is unknown is told.
            reserved += 4 * len(held_out)
            # Processes may differ in settings that decide no result, such as their threads.
            reserved = self.trainer.ranks.broadcast_value(reserved)
            grows = traits.grows_every_task and task.number > 1
            kept = self.settings.memory
            keeps_any = wants and (kept.size != 0 or kept.per_class is not None)
            self._ceiling.check(
                self.method.state.bytes_after(task.num_classes, int(grows)),
                task.num_remembered if keeps_any else 0,
                held_out.num_bytes,
                reserved,
            )
            memory.room = self._ceiling.room(held_out.num_bytes, reserved)
        if wants:
            memory.quota(task.num_remembered)

    def _accuracy(self, held_out: HeldOut, classes: set[int]) -> float | None:
        classifier = next(iter(self.method.classifiers().values()), None)
        data = held_out.data(classes)
        return accuracy(self.trainer, classifier, data) if classifier else None

    def _calibrated(self) -> Tensor:
        data = self.held_out.data()
        if data is None or not self.method.classifiers():
            return torch.empty(0)
        found = next(iter(self.scores(data.images).values()))
        return familiarity(found).sort().values

    def _hide(self, classes: set[int]) -> None:
        self.forgotten |= classes
        for index in classes:
            self.held_out.forget(index)
        self._mask_forgotten()
        self.familiarities = self._calibrated()

    def _mask_forgotten(self) -> None:
        """Hide the forgotten classes and no others, and let their exemplars go.

        Their rows of the head and what the weights know of them stay.
        """
        for index in self.forgotten:
            self.method.memory.forget(index)
        self.method.state.forget(self.forgotten)

    def _remember(self) -> dict[str, Any]:
        # Exemplars and the factory are shared with the copy: updates never write into them.
        method = self.method
        shared = {id(method.memory): method.memory.copy(), id(method.factory): method.factory}
        return {
            "method": copy.deepcopy(method, shared),
            "class_names": list(self.class_names),
            "forgotten": set(self.forgotten),
            "history": list(self.history),
            "held_out": self.held_out.copy(),
            "familiarities": self.familiarities,
            "version": self.version,
        }

    def _restore(self, before: dict[str, Any]) -> None:
        self.method = before["method"]
        self.class_names = before["class_names"]
        self.forgotten = before["forgotten"]
        self.history = before["history"]
        self.held_out = before["held_out"]
        self.familiarities = before["familiarities"]
        self.version = before["version"]

    def _contents(self) -> saving.Contents:
        return saving.Contents(
            settings=self.settings,
            shape=self.shape,
            mean=self.mean,
            std=self.std,
            class_names=self.class_names,
            forgotten=self.forgotten,
            history=self.history,
            method=self.method,
            held_out=self.held_out,
            familiarities=self.familiarities,
            parent=self.version,
        )

    def _refuse_ignorance(self) -> None:
        if not self.method.classifiers():
            where = f" in '{self.place}'" if self.place else ""
            raise GraceError(f"nothing has been learnt yet{where}", "call update first")
