"""A method on its way through a scenario: it learns, is tested and saved task after task."""

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any, final

from grace.data.images import Dataset
from grace.data.scenario import Scenario, Task
from grace.engine.journal import Journal
from grace.engine.loss_meter import NonFiniteLossError
from grace.engine.progress import Progress
from grace.engine.ranks import Ranks
from grace.methods.build import build
from grace.methods.method import Outcome
from grace.methods.preprocessing import constants
from grace.methods.saved import LearntTask, SavedMethod, encode, read, restore
from grace.methods.scoring import finite, refuse_diverged, scores
from grace.runs.evaluation import compare_predictions
from grace.runs.model import BytesRecord, ParameterRecord, PhaseRecord, SecondsRecord, TaskRecord
from grace.settings.experiment import ExperimentSettings


@final
class Stream:
    """The method of a run with its trainer and its scenario.

    Args:
        settings: of the run.
        dataset: images to learn and test on.
        progress: receives the events of the work.
        ranks: the processes that carry out the run.
    """

    def __init__(
        self, settings: ExperimentSettings, dataset: Dataset, progress: Progress, ranks: Ranks
    ) -> None:
        self.settings = settings
        self.ranks = ranks
        self.scenario = Scenario(dataset, settings.scenario, settings.seeds.class_order)
        self.shape = dataset.train.images.shape
        """(C, H, W) of every image."""
        # Those of a pretrained backbone, else of the images.
        self._constants = constants(settings.backbone, self.shape[0], dataset.mean, dataset.std)
        self.trainer, self.method = build(settings, self.shape, *self._constants, progress, ranks)
        self.learnt: list[LearntTask] = []
        if settings.method.traits.memory != "none":
            # Refuse a memory that cannot hold one exemplar of each class.
            self.method.memory.quota(len(self.scenario.class_names))

    def learn(self, task: Task, journal: Journal | None) -> tuple[Outcome, float]:
        """Learn a task; return the method's decision and the seconds that it took in all.

        Args:
            task: the next one.
            journal: saves finished work; ``None``: another process does.
        """
        started = time.perf_counter()
        method, trainer = self.method, self.trainer
        method.memory.record_originals(task.data.labels)
        trainer.start_task(task.number)
        steps, result = method.learn(task, self.settings.probe), None
        try:
            with journal.blamed() if journal else nullcontext():
                for number in count():
                    item = steps.send(result)
                    result = (
                        journal.perform(number, item, trainer) if journal else trainer.run(item)
                    )
        except StopIteration as stop:
            outcome: Outcome = stop.value
        except NonFiniteLossError as error:
            error.name_setting(self.settings.method)
            raise
        refuse_diverged(trainer, method.classifiers(), task.data, method.features)
        if method.features is not None:
            # Those that are saved: a task that is repeated then sweeps the same images.
            method.features.retain(list(map(method.memory.of_class, method.memory.classes)))
        names = self.scenario.class_names[task.new_classes.start : task.new_classes.stop]
        self.learnt.append(LearntTask(new_class_names=tuple(names), outcome=outcome))
        earlier = sum(work.seconds.earlier for work in trainer.work)
        return outcome, time.perf_counter() - started + earlier

    def recall(self, task: Task) -> None:
        """Give a method that keeps all images those of a task that it has learnt."""
        if self.method.memory.keep_all:
            self.method.memory.keep(task.data)

    def test(self, task: Task, outcome: Outcome, seconds: float) -> TaskRecord:
        """Test the method on all seen classes; return the task's line of the record.

        Args:
            task: that was just learnt.
            outcome: the method's decision in it.
            seconds: that it took.
        """
        started = time.perf_counter()
        sizes, method = self.scenario.task_sizes[: task.number], self.method
        test = self.scenario.test_images(task.number)
        found = finite(scores(self.trainer, dict(method.classifiers()), test))
        classifiers, confusion = compare_predictions(found, test.labels, sizes)
        network = method.state.network.value if found else None
        counts = network.num_parameters() if network else None
        backbones, heads = (counts.backbones, counts.heads) if counts else (0, 0)
        evaluating = time.perf_counter() - started
        return TaskRecord(
            task=task.number,
            num_new=task.num_new_classes,
            num_seen=task.num_classes,
            class_names_new=self.learnt[-1].new_class_names,
            classifiers=classifiers,
            primary=next(iter(classifiers), None),
            confusion=confusion,
            saturation=outcome.saturation,
            threshold=outcome.threshold,
            verdict=outcome.verdict,
            merge_weight=outcome.merge_weight,
            reason=outcome.reason,
            measures=dict(outcome.measures),
            backbones=len(network.backbones) if network else 0,
            parameters=ParameterRecord(backbones=backbones, heads=heads, total=backbones + heads),
            bytes=BytesRecord(
                weights=network.num_bytes() if network else 0, exemplars=method.memory.num_bytes
            ),
            num_exemplars=len(method.memory),
            phases=tuple(
                PhaseRecord.model_validate(
                    {**vars(w), "seconds": w.seconds.total, "earlier": w.seconds.earlier}
                )
                for w in self.trainer.work
            ),
            seconds=SecondsRecord(learn=seconds, evaluate=evaluating, total=seconds + evaluating),
        )

    def encoded(self) -> bytes:
        """Return the state after the tasks learnt so far as the bytes of a file."""
        return encode(self.method, self.settings, self.shape, self._constants, self.learnt)

    def load(self, path: Path) -> None:
        """Take the state that an earlier process saved, if there is one; see ``follow``.

        Raises:
            DamagedError: if the file cannot be trusted.
        """
        saved: list[Any] = []
        if os.path.lexists(path):
            facts, kept = read(path)
            saved = [facts.model_dump_json(), kept]
        self.ranks.broadcast_value(saved)
        self._take(saved, f"'{path}'")

    def follow(self, saved: Sequence[Any]) -> None:
        """Take the state that the first process loaded, and learn along with it."""
        self._take(saved, "a broadcast state")
        for task in self.scenario:
            if task.number <= len(self.learnt):
                self.recall(task)
            else:
                self.learn(task, None)

    def _take(self, saved: Sequence[Any], what: str) -> None:
        if saved:
            facts = SavedMethod.model_validate_json(saved[0])
            restore(self.method, facts, saved[1], what)
            self.learnt = list(facts.tasks)
