"""What every method keeps to: one suite over the registry, exceptions declared with a reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from grace.configs.experiment import SeedSettings
from grace.configs.registry import METHODS
from grace.data.images import Images, LabelledImages, TensorImages
from grace.data.memory import herd
from grace.engine.phase import GradientSweep, Phase, Sweep, Work
from grace.engine.trainer import NonFiniteLossError, Trainer
from grace.learner.journal import Journal
from grace.learner.learner import Learner, Update
from grace.storage.tensors import encode
from tiny_streams import (
    SIZE,
    class_names,
    labelled,
    learner,
    recipe,
    same,
    settings,
    state,
    task,
    watch,
)
from variants import VARIANTS

pytestmark = pytest.mark.usefixtures("tiny_backbones")

EXCEPTIONS: Mapping[str, Mapping[str, str]] = {
    "the old head is kept": {"joint": "the upper bound trains a fresh network at every task"},
    "exemplars": {
        "ewc": "it holds parameters in place of images",
        "finetune": "the lower bound keeps none",
        "joint": "the upper bound declares that its memory keeps all images",
    },
    "frozen parts": {
        "replay": "one backbone, which trains in every task",
        "ewc": "one backbone, which trains in every task",
        "finetune": "one backbone, which trains in every task",
        "joint": "a fresh network trains in every task",
    },
    "no new class": {
        "der": "there is nothing to grow a backbone for: it refuses",
        "foster": "there is nothing to boost: it refuses",
        "memo": "there is nothing to specialise in: it refuses",
        "memo-frozen": "there is nothing to specialise in: it refuses",
        "wa": "its cross-entropy would have the weight 1 - K_old/K = 0: it refuses",
        "ewc": "its loss is among new classes only: it refuses",
        "finetune": "its loss is among new classes only: it refuses",
    },
    "sweeps look only": {
        "ewc": "its Fisher pass is in train mode: it moves batch-norm statistics",
    },
    "saving": {
        "joint": "its images are not saved, so it cannot go on without them",
    },
    "bytes": {
        "joint": "no ceiling can bound what keeps all images: nobody asks",
    },
}
MEMORY_SIZE = 13
# Uneven tasks of new classes, one of them of a single class; then images of the known class 0
# beside a new one; then of known classes only.
STREAM: tuple[Mapping[int, int], ...] = (
    {0: 10, 1: 10, 2: 10},
    {3: 10, 4: 10},
    {5: 9},
    {0: 6, 6: 9},
    {1: 7, 3: 5},
)
NUM_SEEN = (3, 5, 6, 7, 7)


def subject_to(check: str = "") -> list[str]:
    """The variants that a check holds for."""
    return [name for name in VARIANTS if name not in EXCEPTIONS.get(check, {})]


def excepted(check: str) -> list[str]:
    return list(EXCEPTIONS[check])


@final
@dataclass
class Gate:
    """Whether a task's images may be read, and how often they were."""

    is_open: bool = True
    reads: int = 0


@final
class GuardedImages(Images):
    """A task's images, which may be read until the task is over."""

    def __init__(self, images: TensorImages, gate: Gate) -> None:
        self._images = images
        self._gate = gate

    @override
    def __len__(self) -> int:
        return len(self._images)

    @property
    @override
    def shape(self) -> tuple[int, int, int]:
        return self._images.shape

    @override
    def gather(self, indices: Tensor) -> Tensor:
        if not self._gate.is_open:
            raise PermissionError("images of an earlier task were read")
        self._gate.reads += len(indices)
        return self._images.gather(indices)

    @override
    def subset(self, indices: Tensor) -> "GuardedImages":
        return GuardedImages(self._images.subset(indices), self._gate)

    @override
    def to(self, device: torch.device) -> "GuardedImages":
        return GuardedImages(self._images.to(device), self._gate)

    @property
    @override
    def num_bytes(self) -> int:
        return self._images.num_bytes


def update(made: Learner, data: LabelledImages) -> Update:
    return made.update(data.images, class_names(data))


@final
@dataclass
class Step:
    """What was seen during one task."""

    old: Mapping[str, Tensor] = field(default_factory=dict)
    """The network before the task."""
    new: Mapping[str, Tensor] = field(default_factory=dict)
    """The network after it."""
    num_backbones: int = 0
    first_head: Mapping[str, Tensor] = field(default_factory=dict)
    """The head handed to the engine, before the task's first phase."""
    heads_in_phase: list[int] = field(default_factory=list)
    """Number of logits of each phase's head."""
    frozen: list[tuple[torch.nn.Module, Mapping[str, Tensor]]] = field(default_factory=list)
    """Every frozen part, and what it was before its phase."""
    exemplars: Mapping[int, Tensor] = field(default_factory=dict)
    """Pixels per class in memory after the task."""
    candidates: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Pixels and features per class that were herded."""
    swept: list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] = field(default_factory=list)
    """What every sweep passed through, before and after it."""
    parts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """The tensors of the method's whole state after the task."""
    expected_bytes: Mapping[bool, int] = field(default_factory=dict)
    """Bytes that were expected of them before, by whether a backbone would be added."""
    gate: Gate = field(default_factory=Gate)
    update: Update | None = None
    refusal: str = ""


class Recording:
    """One learner over the whole stream, and what was seen in each task."""

    def __init__(self, variant: str) -> None:
        self.learner = learner(VARIANTS[variant])
        self.steps: list[Step] = []
        watch(self.learner, self._before, self._after)
        for counts in STREAM:
            self._learn(counts)

    def _learn(self, counts: Mapping[int, int]) -> None:
        step, data = Step(), labelled(counts)
        self.steps.append(step)
        method = self.learner.method
        if self.learner.history:
            step.old = state(method.network)
        coming = task(len(self.steps), counts, len(self.learner.class_names))
        step.expected_bytes = {
            grows: method.bytes_after(coming, grows=grows) for grows in (False, True)
        }
        assert isinstance(data.images, TensorImages)
        guarded = LabelledImages(GuardedImages(data.images, step.gate), data.labels)
        try:
            step.update = update(self.learner, guarded)
        except ValueError as refusal:
            step.refusal = str(refusal)
        step.gate.is_open = method.keeps_all_images
        method = self.learner.method
        step.new = state(method.network)
        step.parts = kept_parts(self.learner)
        step.num_backbones = len(method.network.backbones)
        step.exemplars = {
            index: pixels(method.memory.of_class(index)) for index in method.memory.classes
        }

    def _before(self, item: Work) -> None:
        step = self.steps[-1]
        if isinstance(item, Phase):
            step.first_head = step.first_head or state(item.heads[0])
            step.heads_in_phase.append(len(state(item.heads[0])["bias"]))
            step.frozen += [(module, state(module)) for module in item.untrained]

        else:
            step.swept.append((passed(item), {}))

    def _after(self, item: Work, result: Any) -> None:
        step = self.steps[-1]
        if not isinstance(item, Phase):
            step.swept[-1] = (step.swept[-1][0], passed(item))
        if item.name == "herd":
            labels = item.data.labels
            step.candidates = {
                index: (pixels(item.data.of_class(index).images), result[labels == index])
                for index in set(labels.tolist())
            }


def passed(item: Sweep | GradientSweep) -> dict[str, Tensor]:
    """Copies of all that a sweep passes images through."""
    heads = item.heads if isinstance(item, GradientSweep) else []
    return state(torch.nn.ModuleList([*item.backbones, *heads]))


def kept_parts(made: Learner) -> dict[str, dict[str, Tensor]]:
    """Copies of the tensors that a method would save."""
    parts = made.method.state().parts
    return {part: {name: t.clone() for name, t in own.items()} for part, own in parts.items()}


def same_parts(
    one: Mapping[str, Mapping[str, Tensor]], two: Mapping[str, Mapping[str, Tensor]]
) -> bool:
    return one.keys() == two.keys() and all(same(one[part], two[part]) for part in one)


def pixels(images: Images) -> Tensor:
    return images.gather(torch.arange(len(images)))


@pytest.fixture(scope="module")
def recordings(tiny_backbones: None) -> dict[str, Recording]:
    """Runs over the whole stream, each made once when a test first asks for it."""
    return {}


def recorded(recordings: dict[str, Recording], variant: str) -> Recording:
    if variant not in recordings:
        recordings[variant] = Recording(variant)
    return recordings[variant]


def test_every_registered_method_is_covered() -> None:
    assert {settings(method).method.name for method in VARIANTS.values()} == set(METHODS)
    assert all(name in VARIANTS for reasons in EXCEPTIONS.values() for name in reasons)


@pytest.mark.parametrize("variant", subject_to())
class TestStream:
    def test_uneven_tasks_and_one_of_a_single_class_are_learnt(
        self, recordings: dict[str, Recording], variant: str
    ) -> None:
        run = recorded(recordings, variant)
        for step, seen in zip(run.steps[:4], NUM_SEEN[:4], strict=True):
            assert step.refusal == ""
            assert step.new["head.weight"].shape == (seen, 64 * step.num_backbones)
            assert all(bool(torch.isfinite(tensor).all()) for tensor in step.new.values())
        assert run.learner.class_names == [f"class {index}" for index in range(7)]

    def test_only_the_task_at_hand_and_exemplars_are_read(
        self, recordings: dict[str, Recording], variant: str
    ) -> None:
        run = recorded(recordings, variant)
        # Reading the images of an earlier task would have stopped the run.
        assert all(step.gate.reads > 0 for step in run.steps if step.update)
        assert all(not step.refusal or step is run.steps[4] for step in run.steps)

    def test_the_network_is_left_in_eval_mode_without_gradients(
        self, recordings: dict[str, Recording], variant: str
    ) -> None:
        network = recorded(recordings, variant).learner.method.network
        parts = [part for backbone in network.backbones for part in backbone.modules()]
        assert not any(part.training for part in parts)
        assert not any(parameter.requires_grad for parameter in network.parameters())
        assert all(parameter.grad is None for parameter in network.backbones.parameters())

    def test_every_image_was_counted(self, recordings: dict[str, Recording], variant: str) -> None:
        run = recorded(recordings, variant)
        learnt = [c for c, step in zip(STREAM, run.steps, strict=True) if step.update]
        expected = {index: sum(counts.get(index, 0) for counts in learnt) for index in range(7)}
        assert run.learner.method.memory.original_counts == expected


@pytest.mark.parametrize("variant", subject_to("the old head is kept"))
def test_growth_keeps_the_old_head_exactly(recordings: dict[str, Recording], variant: str) -> None:
    for step in recorded(recordings, variant).steps[1:4]:
        weight, bias = step.old["head.weight"], step.old["head.bias"]
        classes, width = weight.shape
        assert step.first_head["weight"].shape[0] > classes
        assert torch.equal(step.first_head["weight"][:classes, :width], weight)
        assert torch.equal(step.first_head["bias"][:classes], bias)
        # Fresh biases start at 0, fresh weights do not.
        assert not step.first_head["bias"][classes:].any()
        assert bool(step.first_head["weight"][classes:].any(dim=1).all())


@pytest.mark.parametrize("variant", excepted("the old head is kept"))
def test_a_fresh_head_has_all_classes(recordings: dict[str, Recording], variant: str) -> None:
    steps = recorded(recordings, variant).steps
    assert [step.heads_in_phase for step in steps] == [[3], [5], [6], [7], [7]]
    old = steps[1].old["head.weight"]
    assert not torch.equal(steps[1].first_head["weight"][:3], old)


@pytest.mark.parametrize("variant", subject_to("exemplars"))
def test_memory_keeps_quota_and_budget(recordings: dict[str, Recording], variant: str) -> None:
    # M = 13: 13 // 3, 13 // 5, 13 // 6, 13 // 7.
    for step, seen, quota in zip(
        recorded(recordings, variant).steps, NUM_SEEN, (4, 2, 2, 1, 1), strict=True
    ):
        counts = {index: len(kept) for index, kept in step.exemplars.items()}
        assert counts == dict.fromkeys(range(seen), quota)
        assert sum(counts.values()) <= MEMORY_SIZE


@pytest.mark.parametrize("variant", subject_to("exemplars"))
def test_old_classes_keep_their_first_exemplars(
    recordings: dict[str, Recording], variant: str
) -> None:
    steps = recorded(recordings, variant).steps
    for before, after, present in zip(steps, steps[1:], STREAM[1:], strict=False):
        for index in set(before.exemplars) - set(present):
            kept = after.exemplars[index]
            assert torch.equal(kept, before.exemplars[index][: len(kept)])


@pytest.mark.parametrize("variant", subject_to("exemplars"))
def test_a_known_class_is_herded_again_from_stored_and_new_images(
    recordings: dict[str, Recording], variant: str
) -> None:
    steps = recorded(recordings, variant).steps
    step, stored = steps[3], steps[2].exemplars[0]
    candidates, features = step.candidates[0]
    assert torch.equal(candidates, torch.cat([stored, pixels(labelled({0: 6}).images)]))
    assert torch.equal(step.exemplars[0], candidates[herd(features, 1)])
    assert step.candidates.keys() == {0, 6}


@pytest.mark.parametrize("variant", ["finetune", "ewc"])
def test_without_a_memory_nothing_is_kept(recordings: dict[str, Recording], variant: str) -> None:
    assert all(not step.exemplars for step in recorded(recordings, variant).steps)


def test_the_upper_bound_keeps_all(recordings: dict[str, Recording]) -> None:
    kept = recorded(recordings, "joint").steps[4].exemplars
    totals = {index: sum(counts.get(index, 0) for counts in STREAM) for index in range(7)}
    assert {index: len(images) for index, images in kept.items()} == totals
    # Stored images of a known class come before its new ones, as in the memory of the others.
    assert torch.equal(kept[0][:10], pixels(labelled({0: 10}).images))


@pytest.mark.parametrize("variant", subject_to("frozen parts"))
def test_frozen_parts_are_bit_identical_after_a_task(
    recordings: dict[str, Recording], variant: str
) -> None:
    steps = recorded(recordings, variant).steps
    assert all(step.frozen for step in steps[1:4])
    for step in steps:
        for module, before in step.frozen:
            assert any("running_mean" in name for name in before)
            # Compared now, after all tasks.
            assert same(state(module), before)


@pytest.mark.parametrize("variant", excepted("frozen parts"))
def test_nothing_is_frozen(recordings: dict[str, Recording], variant: str) -> None:
    assert not any(step.frozen for step in recorded(recordings, variant).steps)


@pytest.mark.parametrize("variant", subject_to("sweeps look only"))
def test_a_sweep_changes_nothing(recordings: dict[str, Recording], variant: str) -> None:
    for step in recorded(recordings, variant).steps:
        assert all(same(before, after) for before, after in step.swept)


@pytest.mark.parametrize("variant", excepted("sweeps look only"))
def test_a_gradient_sweep_moves_batch_norm_statistics_alone(
    recordings: dict[str, Recording], variant: str
) -> None:
    for step in recorded(recordings, variant).steps[:4]:
        for before, after in step.swept:
            moved = {name for name in before if not torch.equal(before[name], after[name])}
            assert {name.rpartition(".")[2] for name in moved} == {
                "running_mean",
                "running_var",
                "num_batches_tracked",
            }
        assert len(step.swept) == 1


@pytest.mark.parametrize("variant", subject_to())
def test_images_of_known_classes_count_as_old(
    recordings: dict[str, Recording], variant: str
) -> None:
    run = recorded(recordings, variant)
    step = run.steps[3]
    assert step.update is not None
    assert step.update.new_class_names == ("class 6",)
    assert step.heads_in_phase[0] == 7


@pytest.mark.parametrize("variant", subject_to("no new class"))
def test_a_task_without_a_new_class_is_taken_in(
    recordings: dict[str, Recording], variant: str
) -> None:
    run = recorded(recordings, variant)
    step = run.steps[4]
    assert step.refusal == ""
    assert step.update is not None
    assert step.update.new_class_names == ()
    assert len(run.learner.class_names) == 7
    assert step.num_backbones == run.steps[3].num_backbones
    assert not same(step.new, step.old)


@pytest.mark.parametrize("variant", excepted("no new class"))
def test_a_task_without_a_new_class_is_refused_in_one_line(
    recordings: dict[str, Recording], variant: str
) -> None:
    run = recorded(recordings, variant)
    step = run.steps[4]
    assert step.refusal == (
        "task 5 has no new class and this method has no rule for that: add images of a new "
        "class, or use grace or replay"
    )
    assert same(step.new, step.old)
    assert len(run.learner.history) == 4


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("grace")])
def test_grace_refreshes(recordings: dict[str, Recording], variant: str) -> None:
    run = recorded(recordings, variant)
    step = run.steps[4]
    assert step.update is not None
    assert step.update.outcome.verdict == "refresh"
    method: Any = run.learner.method
    assert step.update.outcome.threshold == method.threshold.value
    assert [work.name for work in step.update.work if work.epochs] == ["refresh"]
    # Only the last backbone changed.
    fixed = [name for name in step.old if name.startswith("backbones.")]
    fixed = [name for name in fixed if int(name.split(".")[1]) < step.num_backbones - 1]
    assert all(torch.equal(step.old[name], step.new[name]) for name in fixed)
    assert bool(fixed) == (variant != "grace-compresses")


class TestSeeds:
    """Grey images here: any number of channels works."""

    def learnt(self, variant: str, **seeds: int) -> Mapping[str, Tensor]:
        made = learner(VARIANTS[variant], channels=1, seeds=SeedSettings(**seeds))
        for counts in ({0: 8, 1: 8}, {2: 8}):
            update(made, labelled(counts, channels=1))
        assert made.scores(labelled({0: 3}, channels=1).images)["linear"].shape == (3, 3)
        return state(made.method.network)

    @pytest.mark.parametrize("variant", subject_to())
    def test_one_seed_repeats_and_two_differ(self, variant: str) -> None:
        one = self.learnt(variant)
        # The first convolution comes first, whatever it is called.
        assert next(iter(one.values())).shape[1] == 1
        assert same(self.learnt(variant), one)
        assert not same(self.learnt(variant, initialisation=2), one)
        assert not same(self.learnt(variant, data=2), one)


@final
class Culprit:
    """Makes one item of an update fail: by a NaN in a phase's head, or outright in a sweep."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.armed = False

    def __call__(self, item: Work) -> None:
        if not self.armed or item.name != self.name:
            return
        if isinstance(item, Sweep):
            raise OSError("out of luck")
        with torch.no_grad():
            next(item.heads[0].parameters()).fill_(float("nan"))


FAILURES = [
    ("grace-compresses", "grow"),
    ("grace-compresses", "compress"),
    ("grace-compresses", "class means"),
    ("grace-previous", "assess"),
    ("grace-grows", "herd"),
    ("der", "grow"),
    ("foster", "boost"),
    ("foster", "compress"),
    ("foster", "herd"),
    ("memo", "grow"),
    ("memo-frozen", "grow"),
    ("memo", "class means"),
    ("wa", "update"),
    ("wa", "herd"),
    ("icarl", "update"),
    ("icarl", "class means"),
    ("replay", "update"),
    ("replay", "class means"),
    ("ewc", "update"),
    ("ewc", "fisher"),
    ("finetune", "update"),
    ("joint", "base"),
]


@pytest.mark.parametrize(("variant", "item"), FAILURES)
def test_a_failed_update_leaves_the_learner_as_it_was(
    recordings: dict[str, Recording], variant: str, item: str
) -> None:
    run = recorded(recordings, variant)
    made, culprit = learner(VARIANTS[variant]), Culprit(item)
    watch(made, culprit)
    update(made, labelled(STREAM[0]))
    method: Any = made.method
    parts, memory = kept_parts(made), method.memory
    kept = {index: pixels(memory.of_class(index)) for index in memory.classes}
    scores = made.scores(labelled({0: 3, 2: 3}).images)
    threshold = vars(method).get("threshold")
    counts = dict(memory.original_counts)

    culprit.armed = True
    with pytest.raises((NonFiniteLossError, OSError)) as caught:
        update(made, labelled(STREAM[1]))
    assert item in str(caught.value) or isinstance(caught.value, OSError)
    after: Any = made.method
    assert same_parts(kept_parts(made), parts)
    assert {i: pixels(after.memory.of_class(i)).tolist() for i in after.memory.classes} == {
        index: images.tolist() for index, images in kept.items()
    }
    assert after.memory.original_counts == counts
    assert vars(after).get("threshold") == threshold
    assert made.class_names == ["class 0", "class 1", "class 2"]
    assert len(made.history) == 1
    again = made.scores(labelled({0: 3, 2: 3}).images)
    assert all(torch.equal(again[name], scores[name]) for name in scores)

    # What could not be learnt then is learnt now, as if nothing had happened.
    culprit.armed = False
    update(made, labelled(STREAM[1]))
    assert same_parts(kept_parts(made), run.steps[1].parts)


@pytest.mark.parametrize("variant", subject_to("saving"))
class TestSaving:
    def test_a_saved_learner_goes_on_as_if_it_had_never_left(
        self, recordings: dict[str, Recording], quick_disk: None, variant: str, tmp_path: Path
    ) -> None:
        home, run = tmp_path / "home", recorded(recordings, variant)
        learner(VARIANTS[variant]).live_in(home)
        for counts, step in zip(STREAM[:3], run.steps, strict=False):
            made = Learner.load(home)
            update(made, labelled(counts))
            assert same_parts(kept_parts(made), step.parts)

    def test_an_update_goes_on_where_it_was_killed(
        self,
        recordings: dict[str, Recording],
        quick_disk: None,
        variant: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Each attempt is killed as soon as something is done that was not before."""
        home, perform = tmp_path / "home", Journal.perform
        done: list[str] = []

        def killed(journal: Journal, number: int, item: Work, trainer: Trainer) -> Any:
            result = perform(journal, number, item, trainer)
            if item.name not in done:
                done.append(item.name)
                raise KeyboardInterrupt
            return result

        learner(VARIANTS[variant]).live_in(home)
        update(Learner.load(home), labelled(STREAM[0]))
        monkeypatch.setattr(Journal, "perform", killed)
        attempts = 0
        while True:
            made, attempts = Learner.load(home), attempts + 1
            try:
                update(made, labelled(STREAM[1]))
                break
            except KeyboardInterrupt:
                assert len(made.history) == 1
        step = recorded(recordings, variant).steps[1]
        assert step.update is not None
        assert done == [work.name for work in step.update.work]
        assert attempts == len(done) + 1
        assert same_parts(kept_parts(made), step.parts)
        assert [work.name for work in made.history[-1].work] == done


@pytest.mark.parametrize("variant", subject_to("bytes"))
def test_the_bytes_of_a_state_are_known_beforehand(
    recordings: dict[str, Recording], variant: str
) -> None:
    num_backbones = 1
    for step in recorded(recordings, variant).steps[:4]:
        actual = sum(len(encode(part)) for part in step.parts.values())
        assert step.expected_bytes[step.num_backbones > num_backbones] == actual
        num_backbones = step.num_backbones


@pytest.mark.parametrize("variant", ["der", "replay", "finetune"])
def test_a_huge_learning_rate_is_noticed(variant: str) -> None:
    wild = VARIANTS[variant].model_copy(update={"base": recipe(epochs=8, lr=1e30)})
    made = learner(wild)
    with pytest.raises(NonFiniteLossError, match=r"phase 'base', epoch \d+, batch \d+: lower"):
        update(made, labelled(STREAM[0]))
    assert made.history == []
    assert made.class_names == []
    assert made.method.classifiers() == {}
    assert len(made.method.memory) == 0
    assert made.size().num_backbones == 0


@pytest.mark.parametrize("variant", subject_to())
def test_settings_say_what_they_mean(variant: str) -> None:
    model = type(VARIANTS[variant])
    assert all(info.description for name, info in model.model_fields.items() if name != "name")


@pytest.mark.parametrize("variant", subject_to("exemplars"))
def test_learn_only_yields_between_steps(variant: str) -> None:
    """Making the generator costs nothing: all work is yielded."""
    made = learner(VARIANTS[variant])
    first = made.method.learn(task(1, {0: 4, 1: 4}, 0))
    assert made.method.classifiers() == {}
    item = next(first)
    assert isinstance(item, Phase)
    assert item.name == "base"
    assert item.data.images.shape == (3, SIZE, SIZE)
