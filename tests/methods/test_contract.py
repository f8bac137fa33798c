"""What every method keeps to: one suite over the registry, with declared exceptions.

Where methods rightly differ, in whether they keep exemplars, freeze the old network or learn a task
without a new class, their classes declare it, and the checks follow the declarations.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.base.errors import DamagedError
from grace.base.tensors import encode
from grace.data.memory import herd
from grace.engine.trainer import NonFiniteLossError
from grace.learner.learner import Learner
from grace.methods.state import MethodState
from grace.nn.heads import Head
from support.contract import (
    PROBE,
    VARIANTS,
    every_variant,
    excepted,
    head_shapes,
    is_excepted,
    keeps_exemplars,
    name_of,
)
from support.recorded_streams import (
    MEMORY_SIZE,
    NUM_SEEN,
    STREAM,
    Culprit,
    Recordings,
    kept_parts,
    loaded,
    moved,
    pixels,
    same_parts,
    teach,
)
from support.tiny_streams import create_home, labelled, learner, same, watch

pytestmark = pytest.mark.usefixtures("tiny_backbones")

HERDING = [
    name for name in VARIANTS if keeps_exemplars(name) and VARIANTS[name].traits.trains_backbone
]
LEARNING_KNOWN = [name for name in VARIANTS if VARIANTS[name].traits.learns_known_classes]
REFUSING_KNOWN = [name for name in VARIANTS if not VARIANTS[name].traits.learns_known_classes]


@pytest.fixture(scope="module")
def recordings(tiny_backbones: None) -> Recordings:
    return Recordings(VARIANTS)


def head_in(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head's tensors among a network's, by their own names."""
    start = "head."
    return {n.removeprefix(start): t for n, t in network.items() if n.startswith(start)}


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@every_variant
class TestStream:
    def test_the_head_grows_by_the_new_classes_of_uneven_tasks(
        self, recordings: Recordings, variant: str
    ) -> None:
        run = recordings[variant]
        for step, seen in zip(run.steps[:4], NUM_SEEN[:4], strict=True):
            assert step.refusal == ""
            assert shapes(head_in(step.new)) == head_shapes(variant, seen, 64 * step.num_backbones)
            assert all(bool(torch.isfinite(tensor).all()) for tensor in step.new.values())
        # One backbone more in each task of a method that declares so.
        grown = [step.num_backbones for step in run.steps[:4]]
        declared = VARIANTS[variant].traits.grows_every_task
        assert grown == [1, 2, 3, 4] if declared else grown[0] == 1
        assert run.learner.class_names == [f"class {index}" for index in range(7)]

    def test_the_network_is_left_in_eval_mode_without_gradients(
        self, recordings: Recordings, variant: str
    ) -> None:
        network = recordings[variant].learner.method.network
        assert (network.trunk is not None) == VARIANTS[variant].traits.shares_trunk
        parts = [part for backbone in network.backbones for part in backbone.modules()]
        assert not any(part.training for part in parts)
        assert not any(parameter.requires_grad for parameter in network.parameters())
        assert all(parameter.grad is None for parameter in network.backbones.parameters())

    def test_every_image_was_counted(self, recordings: Recordings, variant: str) -> None:
        run = recordings[variant]
        learnt = [c for c, step in zip(STREAM, run.steps, strict=True) if step.update]
        expected = {index: sum(counts.get(index, 0) for counts in learnt) for index in range(7)}
        assert run.learner.method.memory.original_counts == expected


@every_variant
def test_growth_keeps_the_old_head_exactly(recordings: Recordings, variant: str) -> None:
    """Every head over all classes that a phase is handed begins with the old one."""
    for step in recordings[variant].steps[1:]:
        for piece in step.phases:
            if is_excepted(variant, piece) or is_excepted(variant, piece, "headless"):
                continue
            old = head_in(step.old)
            assert piece.head.keys() == old.keys()
            for name, tensor in old.items():
                grown = piece.head[name]
                assert torch.equal(grown[tuple(map(slice, tensor.shape))], tensor)
                # Fresh biases start at 0, fresh weights do not.
                is_drawn = [bool(row.any()) for row in grown[len(tensor) :]]
                assert is_drawn == [name != "bias"] * len(is_drawn)


@pytest.mark.parametrize("variant", excepted("joint"))
def test_joint_starts_a_fresh_network(recordings: Recordings, variant: str) -> None:
    steps = recordings[variant].steps
    assert [[len(p.head["bias"]) for p in step.phases] for step in steps] == [
        [3], [5], [6], [7], [7],
    ]  # fmt: skip
    for step in steps[1:]:
        (piece,) = step.phases
        assert not piece.head["bias"].any()
        old = step.old["head.weight"]
        assert not bool((piece.head["weight"][: len(old)] == old).any())
        # The stem's convolution, and a batch norm that has seen no image.
        stem, *_ = piece.begins
        assert not bool((piece.begins[stem] == step.old[f"backbones.0.{stem}"]).any())
        seen = [t for name, t in piece.begins.items() if name.endswith("num_batches_tracked")]
        assert seen
        assert not any(bool(count) for count in seen)


@every_variant
def test_what_does_not_train_is_bit_identical_afterwards(
    recordings: Recordings, variant: str
) -> None:
    """Frozen parts of a phase, and all that a sweep passes through; buffers too.

    Of parts that change otherwise, the parameters that do not train.
    """
    for step in recordings[variant].steps:
        for piece in step.pieces:
            if is_excepted(variant, piece):
                continue
            for (_, before), after in zip(piece.idle, piece.left, strict=True):
                assert same(before, after)
            for (_, before), after in zip(piece.still, piece.still_left, strict=True):
                assert same(before, after)


@every_variant
def test_the_old_network_is_frozen_where_declared(recordings: Recordings, variant: str) -> None:
    first, *later = recordings[variant].steps
    assert not any(piece.idle for piece in first.phases)
    for step in later:
        for piece in step.phases:
            backbones = [own for module, own in piece.idle if not isinstance(module, Head)]
            is_beside = not is_excepted(variant, piece, "alone")
            assert bool(backbones) == (VARIANTS[variant].traits.freezes_old_network and is_beside)
            assert bool(piece.idle) == bool(backbones)
            assert all(any("running_mean" in name for name in before) for before in backbones)


@pytest.mark.parametrize("variant", excepted("ewc"))
def test_ewcs_fisher_pass_moves_batch_norm_statistics_alone(
    recordings: Recordings, variant: str
) -> None:
    for step in recordings[variant].steps[:4]:
        (piece,) = [piece for piece in step.pieces if piece.name == "fisher"]
        backbone, head = zip(piece.idle, piece.left, strict=True)
        statistics = {"running_mean", "running_var", "num_batches_tracked"}
        assert moved(backbone[0][1], backbone[1]) == statistics
        assert moved(head[0][1], head[1]) == set()


@every_variant
def test_only_the_task_at_hand_and_exemplars_are_read(recordings: Recordings, variant: str) -> None:
    run = recordings[variant]
    for now, step in enumerate(run.steps):
        work = step.update.work if step.update else ()
        # Each phase reads an image once an epoch, each sweep once; class means ask for exemplars.
        passes = sum(max(1, done.epochs) for done in work if done.name != "class means")
        few = [done.epochs for done in work if is_excepted(variant, done.name, "chooses")]
        for owner in range(len(run.steps)):
            reads = run.reads.of(str(owner), str(now))
            if not VARIANTS[variant].traits.trains_backbone:
                # Passed once; hashed to find its features, twice; stored. No phase reads it.
                most = 5 if owner == now else 0
                assert (owner == now) <= int(reads.min()) <= int(reads.max()) <= most
            elif owner == now:
                # Once more to store it, and the first 16 to see that their scores are finite.
                assert passes - sum(few) <= int(reads.min()) <= int(reads.max()) <= passes + 2
                assert few or int(reads.min()) == passes + (passes > 0 and len(reads) <= 16)
            elif owner < now and VARIANTS[variant].traits.memory == "all images":
                assert bool((reads == passes).all())
            else:
                assert bool((reads == 0).all())


@every_variant
def test_memory_is_never_above_its_quota(recordings: Recordings, variant: str) -> None:
    """A class without memory keeps nothing; one that declares that it keeps all does so."""
    for number, step in enumerate(recordings[variant].steps):
        counts = {index: len(kept) for index, kept in step.exemplars.items()}
        if VARIANTS[variant].traits.memory == "all images":
            so_far = STREAM[: number + 1]
            classes = range(NUM_SEEN[number])
            assert counts == {c: sum(given.get(c, 0) for given in so_far) for c in classes}
            continue
        # M = 13: 13 // 3, 13 // 5, 13 // 6, 13 // 7.
        quota = (4, 2, 2, 1, 1)[number] if VARIANTS[variant].traits.memory == "exemplars" else 0
        assert counts == {index: quota for index in range(NUM_SEEN[number]) if quota}
        assert all(piece.num_kept <= MEMORY_SIZE for piece in step.pieces)


@every_variant
def test_old_classes_keep_their_first_exemplars(recordings: Recordings, variant: str) -> None:
    steps = recordings[variant].steps
    for before, after, present in zip(steps, steps[1:], STREAM[1:], strict=False):
        for index in set(before.exemplars) - set(present):
            kept = after.exemplars[index]
            assert torch.equal(kept, before.exemplars[index][: len(kept)])


@pytest.mark.parametrize("variant", HERDING)
def test_a_known_class_is_herded_again_from_stored_and_new_images(
    recordings: Recordings, variant: str
) -> None:
    steps = recordings[variant].steps
    step, stored = steps[3], steps[2].exemplars[0]
    candidates, features = step.candidates[0]
    assert torch.equal(candidates, torch.cat([stored, pixels(labelled({0: 6}).images)]))
    assert torch.equal(step.exemplars[0], candidates[herd(features, 1)])
    assert step.candidates.keys() == {0, 6}


@pytest.mark.parametrize("variant", LEARNING_KNOWN)
def test_a_task_without_a_new_class_is_taken_in(recordings: Recordings, variant: str) -> None:
    run = recordings[variant]
    step = run.steps[4]
    assert step.refusal == ""
    assert step.update.new_class_names == ()
    assert len(run.learner.class_names) == 7
    assert step.num_backbones == run.steps[3].num_backbones
    assert not same_parts(step.parts, run.steps[3].parts)


@pytest.mark.parametrize("variant", REFUSING_KNOWN)
def test_a_task_without_a_new_class_is_refused_in_one_line(
    recordings: Recordings, variant: str
) -> None:
    run = recordings[variant]
    step = run.steps[4]
    assert f"{name_of(variant)} has no rule" in step.refusal
    assert all(name_of(other) in step.refusal for other in LEARNING_KNOWN)
    assert "\n" not in step.refusal
    assert step.pieces == []
    assert same(step.new, step.old)
    assert len(run.learner.history) == 4


@every_variant
def test_a_failed_update_leaves_the_learner_as_it_was(recordings: Recordings, variant: str) -> None:
    recorded = recordings[variant].steps[1].update
    assert recorded is not None
    if not recorded.work:
        pytest.skip("it has no work in which it could fail")
    item = recorded.work[-1].name
    made, culprit = learner(VARIANTS[variant]), Culprit(item)
    watch(made, culprit)
    teach(made, labelled(STREAM[0]))
    method: Any = made.method
    parts, memory = kept_parts(made), method.memory
    kept = {index: pixels(memory.of_class(index)) for index in memory.classes}
    scores = made.scores(PROBE.images)
    values = method.state.collect().values
    counts = dict(memory.original_counts)

    culprit.armed = True
    with pytest.raises((NonFiniteLossError, OSError)) as caught:
        teach(made, labelled(STREAM[1]))
    assert item in str(caught.value) or isinstance(caught.value, OSError)
    after: Any = made.method
    assert same_parts(kept_parts(made), parts)
    assert {i: pixels(after.memory.of_class(i)).tolist() for i in after.memory.classes} == {
        index: images.tolist() for index, images in kept.items()
    }
    assert after.memory.original_counts == counts
    assert after.state.collect().values == values
    assert (made.class_names, len(made.history)) == (["class 0", "class 1", "class 2"], 1)
    assert same(made.scores(PROBE.images), scores)

    # What could not be learnt then is learnt now, as if nothing had happened.
    culprit.armed = False
    teach(made, labelled(STREAM[1]))
    assert same_parts(kept_parts(made), recordings[variant].steps[1].parts)
    assert made.method.state.collect().values == recordings[variant].steps[1].values


@every_variant
class TestSaving:
    def test_a_saved_learner_predicts_the_same_and_goes_on(
        self, recordings: Recordings, variant: str, tmp_path: Path
    ) -> None:
        home = tmp_path / "home"
        create_home(VARIANTS[variant], home)
        for number, step in enumerate(recordings[variant].steps[:3]):
            made = loaded(home, number)
            teach(made, labelled(STREAM[number]))
            assert same_parts(kept_parts(made), step.parts)
            assert made.method.state.collect().values == step.values
            said, again = made.scores(PROBE.images), Learner.load(home).scores(PROBE.images)
            assert list(again) == list(said)
            assert same(again, said)


@every_variant
def test_the_bytes_of_a_state_are_known_beforehand(recordings: Recordings, variant: str) -> None:
    num_backbones = 1
    for step in recordings[variant].steps[:4]:
        actual = sum(len(encode(part)) for part in step.parts.values())
        assert step.expected_bytes[step.num_backbones > num_backbones] == actual
        num_backbones = step.num_backbones


@every_variant
def test_a_damaged_state_is_refused(recordings: Recordings, variant: str) -> None:
    """A part that is missing, of another shape or not finite, and one that it never writes."""
    step, state = recordings[variant].steps[1], learner(VARIANTS[variant]).method.state
    optional = set()
    for name, part in step.parts.items():
        key = next(key for key, tensor in part.items() if tensor.is_floating_point())
        for wrong in (torch.zeros(7, 7, 7), torch.full_like(part[key], torch.inf)):
            with pytest.raises(DamagedError):
                state.restore(
                    MethodState(step.values, {**step.parts, name: {**part, key: wrong}}), 5
                )
        others = {other: kept for other, kept in step.parts.items() if other != name}
        try:
            state.restore(MethodState(step.values, others), 5)
        except DamagedError:
            continue
        optional.add(name)
    assert optional <= {"class_means"}
    with pytest.raises(DamagedError, match="parts that it never writes: 'more'"):
        state.restore(MethodState(step.values, {**step.parts, "more": {}}), 5)
    state.restore(MethodState(step.values, step.parts), 5)
