"""The learner: a method with its network, memory and class names, updated task by task."""

import copy
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self, final

import torch
from torch import Tensor

from grace.configs.experiment import EngineSettings, ExperimentSettings
from grace.configs.load import load_experiment
from grace.configs.methods import MethodSettings
from grace.configs.registry import resolve
from grace.data.arrays import for_channels
from grace.data.augmentation import build_augmentation
from grace.data.images import LabelledImages
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Phase
from grace.engine.progress import Progress
from grace.engine.ranks import Ranks
from grace.engine.trainer import Trainer
from grace.learner import saving
from grace.learner.ceiling import Ceiling, set_aside
from grace.learner.document import Accuracies, Document, Update
from grace.learner.evaluation import accuracy, scores
from grace.learner.export import Preprocessing
from grace.learner.exporting import Exported, export_checked
from grace.learner.held_out import HeldOut
from grace.learner.home import Creation, Home
from grace.learner.intake import AnyImages, Intake, as_images, class_indices, divide, take_in
from grace.learner.journal import Journal
from grace.learner.unknown import cutoff, familiarity
from grace.methods.base import Classifier, Method, Outcome
from grace.methods.workshop import Workshop
from grace.storage import strict_json


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


@final
class Learner:
    """A classifier that learns new classes from their images alone.

    With a home, a directory, every update becomes a version there, and one that is interrupted
    goes on where it stopped when it is asked for again. Without one it lives in memory.

    Args:
        settings: method, backbone, memory, augmentation, seeds, engine; the scenario is not used.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel, of pixels in [0, 1].
        std: likewise.
        progress: told what happens.
        is_saved: whether it is about to become what was saved: its backbone is not tried before.
        ranks: the processes that teach it together, each a learner of its own with the same
            images; none for this one alone. Only the first one's may have a home.

    Example:
        >>> learner = Learner.create("folder", shape=(3, 32, 32))  # doctest: +SKIP
        >>> learner.update(images, ["cat", "dog", ...])
        >>> learner.predict(images)
        >>> learner.save("pets")
        >>> Learner.load("pets").update(more_images, ["parrot", ...])
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
        self._created_as = Creation.of(saving.portable(settings), shape, mean, std)
        self.settings = settings
        self.shape = shape
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.class_names: list[str] = []
        self.forgotten: set[int] = set()
        self.history: list[Update] = []
        self.held_out = HeldOut()
        self.home: Home | None = None
        self.version: int | None = None
        """The version of the home that this learner is; none before it is one."""
        self.familiarities = torch.empty(0)
        """Of the held-out images (n,), ascending: what is unknown is told by them."""
        if settings.data.augmentation == "imagenet" and shape[1] != shape[2]:
            raise ValueError(
                "data.augmentation=imagenet crops squares, but the images are "
                f"{shape[2]}×{shape[1]} pixels: set data.image_size"
            )
        augmentation = build_augmentation(settings.data.augmentation, self.mean, self.std, shape[1])
        self.trainer = Trainer(settings.engine, augmentation, settings.seeds.data, progress, ranks)
        build: type[Method[Any]] = resolve("method", settings.method.name)
        memory = ExemplarMemory(settings.memory, keep_all=build.keeps_all_images)
        workshop = Workshop(settings, shape[0], self.trainer.device)
        if not is_saved:
            workshop.refuse_unfit_backbone(shape, shares_trunk=build.shares_trunk)
        self.method: Method[Any] = build(settings.method, workshop, memory)
        self._first_task: Path | None = None
        self._ceiling: Ceiling | None = None
        if settings.memory.max_mb is not None:
            channels, height, width = shape
            self._ceiling = Ceiling(settings.memory.max_mb, channels * height * width)
            if build.keeps_all_images:
                raise ValueError(
                    f"{settings.method.name} keeps all images, which no ceiling can bound: remove "
                    "memory.max_mb (--max-mb) or choose another method"
                )

    @classmethod
    def create(
        cls,
        experiment: str | ExperimentSettings = "folder",
        overrides: Sequence[str] = (),
        *,
        shape: tuple[int, int, int],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        directory: str | Path | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Make a learner that knows nothing yet.

        Args:
            experiment: settings, or the name or path of an experiment that has them.
            overrides: ``key.path=value`` texts over a named experiment.
            shape: (C, H, W) of every image; C is 1 or 3.
            mean: normalisation constants per channel; none takes ImageNet's.
            std: likewise.
            directory: home to make; none keeps the learner in memory.
            progress: told what happens.

        Raises:
            ValueError: for settings that cannot be carried out, or a directory that is taken.
        """
        settings = experiment
        if isinstance(settings, str):
            settings = load_experiment(settings, overrides)
        channels = 1 if shape[0] == 1 else 3
        learner = cls(
            settings,
            shape,
            mean or for_channels((0.485, 0.456, 0.406), channels),
            std or for_channels((0.229, 0.224, 0.225), channels),
            progress,
        )
        if directory is not None:
            learner.home = Home.create(Path(directory), learner._created_as)
        return learner

    @classmethod
    def load(
        cls,
        directory: str | Path,
        version: int | None = None,
        *,
        engine: EngineSettings | None = None,
        method: MethodSettings | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Bring a saved learner back; it goes on as if it had never stopped.

        Args:
            directory: its home.
            version: number of a version; none takes the one in use.
            engine: how the work is carried out here; none takes the saved way as far as this
                machine can.
            method: the saved method's settings with other recipes, for updates to come; none
                leaves them.
            progress: told what happens.

        Raises:
            ValueError: if there is no such learner or version, it was made by a newer grace, or
                ``method`` is another method.
            DamagedError: if its files cannot be trusted.
        """
        home = Home.open(Path(directory))
        number = home.current() if version is None else version
        saved = home.creation if number is None else home.document(number)
        settings = saving.carried_out_here(saved.settings, engine)
        if method is not None:
            settings = saving.with_recipes(settings, method)
        with saving.told_of(saved, home):
            learner = cls(settings, saved.shape, saved.mean, saved.std, progress, is_saved=True)
        if isinstance(saved, Document):
            learner._become(saved, home)
        learner.home = home
        return learner

    def save(self, directory: str | Path) -> int:
        """Save this learner as the next version of a home, made if need be, and put it in use.

        Returns:
            The version's number.

        Raises:
            ValueError: if nothing has been learnt, the directory is something else, or the
                learner has a home already, which is where its updates go.
        """
        path = Path(directory)
        self._refuse_ignorance()
        if self.home is not None and self.version is not None:
            if self.home.path.resolve() == path.resolve():
                return self.version
            raise ValueError(
                f"this learner lives in '{self.home.path}': copy that directory to have it twice"
            )
        home = Home.create(path, self._created_as)
        with home.changing():
            self._write(home, accepted=True, digest=None)
        self.home = home
        assert self.version is not None
        return self.version

    def live_in(self, directory: str | Path) -> None:
        """Give a learner that knows nothing a home of its own, or go on with the one that is there.

        Raises:
            DamagedError: if the home's files cannot be trusted.
        """
        assert not self.history
        assert self.home is None
        path = Path(directory)
        if not (path / "model.json").exists():
            self.home = Home.create(path, self._created_as)
            return
        self.home = Home.open(path)
        with self.home.changing():
            self.home.put_newest_in_use()
            current = self.home.current()
            if current is not None:
                self._become(self.home.document(current), self.home)

    def share_first_task(self, folder: Path) -> None:
        """Share the network of the first task with all learners that are given this folder.

        Args:
            folder: made if need be. Whoever gives it sees to it that data, settings, seeds and
                versions of these learners agree in all that decides that network.
        """
        self._first_task = folder

    def become(self, directory: str | Path) -> None:
        """Become what a home has in use without living there: another process does.

        Raises:
            DamagedError: if the home's files cannot be trusted.
        """
        assert not self.history
        assert self.home is None
        home = Home.open(Path(directory))
        current = home.current()
        if current is not None:
            self._become(home.document(current), home)

    def keep_versions(self, count: int) -> None:
        """Remove all but the newest versions from the home; the one in use stays."""
        home = self._home()
        with home.changing():
            home.prune(count)

    def rollback(self, version: int) -> None:
        """Put another version of the home in use, and become it.

        Raises:
            ValueError: without a home, or if there is no such version.
        """
        home = self._home()
        with home.changing():
            self._become(home.document(version), home)
            home.make_current(version)

    def update(
        self,
        images: AnyImages,
        labels: Sequence[str],
        *,
        validation: tuple[AnyImages, Sequence[str]] | None = None,
        max_drop: float | None = None,
        is_last: bool = False,
        again: bool = False,
        identity: str | None = None,
    ) -> Update:
        """Learn images of new classes, and fresh images of known ones.

        New classes get the next indices in order of first appearance. When anything fails, the
        learner stays as it was. With a home, an update that was interrupted goes on where it
        stopped, and one that is already the learner's last is not repeated.

        Args:
            images: uint8, (N, C, H, W).
            labels: N class names.
            validation: images to hold out, and their class names; none holds some of ``images``
                out. ``memory.validation`` says how many of each class.
            max_drop: points of percent of accuracy that classes known before may lose on their
                held-out images; an update that costs more is kept as a rejected version, and the
                learner stays as it was.
            is_last: whether the stream is known to end here (joint training waits for it).
            again: repeat an update that is the learner's last.
            identity: tells this update from others where hashing its images would take long.

        Returns:
            What was decided and what it cost; ``accepted`` tells whether it is in use.

        Raises:
            ValueError: for images of another shape, too few classes, a memory too small, a ceiling
                too low, or a loss that is not finite.
        """
        intake = take_in(
            images,
            labels,
            validation,
            self.shape,
            max_drop=max_drop,
            is_last=is_last,
            identity=identity,
        )
        if self.home is None:
            return self._learn(intake, None)
        with self.home.changing():
            self._refuse_stale(self.home)
            repeats = again and not self.home.has_saved(intake.digest)
            done = None if repeats else self._done_already(intake, self.home)
            if done is None:
                journal = self.home.begin(self.version, intake.digest)
                try:
                    done = self._learn(intake, journal)
                except ValueError:
                    self.home.discard()  # The same would happen again.
                    raise
            self.home.discard()
            self.home.remove_unused()
        return done

    def forget(self, name: str) -> None:
        """Forget a class: drop its images from every version of the home, mask it in all of them.

        Its index stays, and the weights are not unlearnt: what they know of it is hidden, not
        gone. Later images of that name revive it. A version that has no class left can no longer
        be loaded.

        Raises:
            ValueError: if no version has such a class, it is this learner's last one, or an update
                of the home was interrupted.
        """
        live = [n for i, n in enumerate(self.class_names) if i not in self.forgotten]
        elsewhere = self.home.live_class_names() if self.home else set()
        if name not in {*live, *elsewhere}:
            raise ValueError(f"'{name}' is no class of this learner: it knows {', '.join(live)}")
        if live == [name]:
            raise ValueError(f"'{name}' is the last class left: a learner without classes is none")
        if self.home is not None:
            with self.home.changing():
                self.home.purge(name)
        if name in live:
            self._forget({self.class_names.index(name)})

    def check_memory(self, num_classes: int) -> None:
        """Refuse a memory that cannot hold one exemplar of each of ``num_classes`` classes."""
        if self.method.uses_memory:
            self.method.memory.quota(num_classes)

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
            where = f"of '{self.home.path}' " if self.home else ""
            raise ValueError(f"the scores {where}are not finite: its weights are damaged")
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
            raise ValueError(f"{len(predictions)} images but {len(labels)} labels: give one each")
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
            raise ValueError(f"'{path}' exists already: choose another name or remove it")
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

    def recall(self, images: AnyImages, labels: Sequence[str]) -> None:
        """Give a loaded learner that keeps every image those it learnt from: none are saved.

        Those that are held out, or of forgotten classes, are left out.
        """
        intake = take_in(images, labels, None, self.shape)
        index = class_indices(self.class_names, intake.labels)
        assert len(index) == len(self.class_names), "these classes were never learnt"
        data, _ = divide(intake, index, self.held_out, self.method.memory, 0, 0, 0)
        hidden = torch.isin(data.labels, torch.tensor(sorted(self.forgotten)))
        self.method.keep(data.subset((~hidden).nonzero().flatten()) if bool(hidden.any()) else data)

    def _learn(self, intake: Intake, journal: Journal | None) -> Update:
        """Carry an update out, save it where there is a home, and undo it if it is not wanted."""
        before = self._remember()
        try:
            update = self._carry_out(intake, journal)
            self.history.append(update)
            if self._ceiling or self.home:
                update = update.model_copy(
                    update={"num_bytes": saving.describe(self._contents()).num_bytes}
                )
            # A gate that judged otherwise elsewhere would part the processes.
            update = self._told(update)
            self.history[-1] = update
            assert not self._ceiling or update.num_bytes <= self._ceiling.num_bytes
            if self.home is not None:
                self._write(self.home, accepted=update.accepted, digest=intake.digest)
        except BaseException:
            self._restore(before)
            raise
        if not update.accepted:
            self._restore(before)
        return update

    def _told(self, own: Update) -> Update:
        """Hear what the first process says of the update."""
        ranks = self.trainer.ranks
        if not ranks.are_several:
            return own
        return Update.model_validate_json(ranks.tell(own.model_dump_json()))

    def _carry_out(self, intake: Intake, journal: Journal | None) -> Update:
        started = time.perf_counter()
        number, num_old = len(self.history) + 1, len(self.class_names)
        index = class_indices(self.class_names, intake.labels)
        if number == 1 and len(index) < 2:
            raise ValueError("the first update needs images of at least two classes")
        seed, wanted = self.settings.seeds.exemplars, self.settings.memory.validation
        memory = self.method.memory
        data, held_out = divide(intake, index, self.held_out, memory, wanted, seed, number)
        present = set(data.labels.tolist())
        revived = sorted(self.forgotten & present)
        task = Task(
            number=number,
            data=data,
            new_classes=range(num_old, len(index)),
            num_old_classes=num_old,
            num_classes=len(index),
            is_last=intake.is_last,
            forgotten=frozenset(self.forgotten - present),
        )
        spelt = [*list(index)[num_old:], *(self.class_names[i] for i in revived)]
        self._refuse_unfit(task, spelt, held_out)

        old = set(range(num_old)) - self.forgotten
        size = self.size()
        old_before = self._accuracy(held_out, old)
        self.forgotten -= present
        self.held_out = held_out
        self.class_names = list(index)
        self.method.forget(self.forgotten)
        self.method.memory.record_originals(data.labels)
        with journal.blamed() if journal else nullcontext():
            outcome, teacher = self._perform(task, journal)
        self.familiarities = self._calibrated()
        live = set(range(task.num_classes)) - self.forgotten
        compressed = outcome.verdict in ("compress", "compress (budget)")
        new = {*task.new_classes, *revived}
        now = self.size()
        return Update(
            task=number,
            new_class_names=tuple(self.class_names[num_old:]),
            revived_class_names=tuple(self.class_names[i] for i in revived),
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
            max_drop=intake.max_drop,
            seconds=time.perf_counter() - started,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _perform(self, task: Task, journal: Journal | None) -> tuple[Outcome, float | None]:
        """Run the method; also measure what a phase distils from, on the held-out images."""
        self.trainer.start_task(task.number)
        if journal and self._first_task and task.number == 1:
            journal.share(self._first_task, self.trainer)
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

    def _refuse_unfit(self, task: Task, names: Sequence[str], held_out: HeldOut) -> None:
        """Refuse a task that memory or ceiling cannot hold, and say what exemplars may take.

        ``names`` are those that the history will tell of it.
        """
        memory, wants = self.method.memory, self.method.uses_memory
        if memory.keep_all and self.history and len(memory.classes) < task.num_live_old:
            raise ValueError(
                f"a saved {self.settings.method.name} learner does not have the images it learnt "
                "from and cannot go on: create a new one with all images"
            )
        if self._ceiling is not None:
            document_bytes = len(saving.describe(self._contents()).dump()) if self.history else 0
            name_bytes = len(strict_json.dump(list(names)))
            num_present = len(set(task.data.labels.tolist()))
            aside = set_aside(document_bytes, name_bytes, task.num_classes, num_present)
            # Versions have numbers in the first process alone.
            aside = self.trainer.ranks.tell(aside + 4 * len(held_out))
            grows = self.method.adds_backbones and task.number > 1
            kept = self.settings.memory
            keeps_any = wants and (kept.size != 0 or kept.per_class is not None)
            self._ceiling.check(
                self.method.bytes_after(task, grows=grows),
                task.num_live if keeps_any else 0,
                held_out.num_bytes,
                aside,
            )
            memory.room = self._ceiling.room(held_out.num_bytes, aside)
        if wants:
            memory.quota(task.num_live)

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

    def _forget(self, classes: set[int]) -> None:
        self.forgotten |= classes
        for index in classes:
            self.held_out.forget(index)
        self.method.forget(self.forgotten)
        self.familiarities = self._calibrated()

    def _refuse_stale(self, home: Home) -> None:
        """Refuse to go on from what the home no longer has in use as this learner knows it."""
        number = home.current()
        forgotten = set() if number is None else set(home.document(number).forgotten)
        if (number, forgotten) != (self.version, self.forgotten):
            raise ValueError(
                f"'{home.path}' has changed since this learner was loaded: load it again"
            )

    def _done_already(self, intake: Intake, home: Home) -> Update | None:
        """Find this very update among the versions: it was saved, then the process was killed."""
        numbers = home.numbers()
        newest = home.document(numbers[-1]) if numbers else None
        if newest is None or newest.digest != intake.digest:
            return None
        if not set(intake.labels) <= set(newest.live_class_names):
            return None  # It was learnt, and forgotten since.
        update = newest.history[-1]
        if newest.number == self.version:
            return update
        if newest.parent != self.version:
            return None
        if newest.status == "accepted":
            home.make_current(newest.number)
            self._become(newest, home)
        return update

    def _write(self, home: Home, *, accepted: bool, digest: str | None) -> None:
        """Add this learner to its home; an accepted one is put in use."""
        number = home.next_number()
        status: Literal["accepted", "rejected"] = "accepted" if accepted else "rejected"
        home.write(
            saving.to_document(
                self._contents(), home.put, number=number, status=status, digest=digest
            )
        )
        if accepted:
            home.make_current(number)
        self.version = number

    def _become(self, document: Document, home: Home) -> None:
        """Take over everything that a version holds; on failure this learner is as it was."""
        if not document.live_class_names:
            raise ValueError(
                f"all classes of version {document.number} of '{home.path}' were forgotten: choose "
                "another version"
            )
        if document.shape != self.shape:
            raise ValueError(
                f"version {document.number} of '{home.path}' takes images of shape "
                f"{document.shape}, this learner those of {self.shape}"
            )
        saving.refuse_too_large(document, home)
        state = saving.read_state(document, home)
        exemplars, held_out = saving.read_images(document, home)
        familiarities = saving.read_familiarities(document, home)
        before = self._remember()
        try:
            with saving.told_of(document, home):
                self.method.restore(state, len(document.class_names))
                self.method.refuse_unfit(document.shape)
            self.method.memory.restore(exemplars, document.original_counts)
            self.class_names = list(document.class_names)
            self.history = list(document.history)
            self.held_out = held_out
            self.familiarities = familiarities
            self.forgotten = set(document.forgotten)
            self.method.forget(self.forgotten)
            if document.calibration is None:
                self.familiarities = self._calibrated()
        except BaseException:
            self._restore(before)
            raise
        self.version = document.number

    def _remember(self) -> dict[str, Any]:
        # Exemplars and the workshop are shared with the copy: updates never write into them.
        method = self.method
        shared = {id(method.memory): method.memory.copy(), id(method.workshop): method.workshop}
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

    def _home(self) -> Home:
        if self.home is None:
            raise ValueError("this learner has no home: save it into a directory first")
        return self.home

    def _refuse_ignorance(self) -> None:
        if not self.method.classifiers():
            where = f" in '{self.home.path}'" if self.home else ""
            raise ValueError(f"nothing has been learnt yet{where}: call update first")
