"""Which rows of a batch each process takes, and how one learns that it is not alone."""

import pytest
import torch
from torch import nn

from grace.base.randomness import generator
from grace.engine.batch_norm import synchronised
from grace.engine.launch import Launch
from grace.engine.ranks import Ranks
from grace.nn.resnets import CifarResNet
from grace.settings.experiment import EngineSettings

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.mark.parametrize(
    ("num_images", "num_processes", "rows", "shares"),
    [
        (8, 2, [(0, 4), (4, 8)], [1 / 2, 1 / 2]),
        (5, 2, [(0, 2), (2, 5)], [2 / 5, 3 / 5]),
        (10, 4, [(0, 2), (2, 5), (5, 7), (7, 10)], [0.2, 0.3, 0.2, 0.3]),
        # Nobody gets a single image; who is left without borrows the first one's.
        (3, 2, [(0, 3), (0, 3)], [1, 0]),
        (5, 4, [(0, 2), (2, 5), (0, 2), (0, 2)], [0.4, 0.6, 0, 0]),
        (1, 2, [(0, 1), (0, 1)], [1, 0]),
        (7, 1, [(0, 7)], [1]),
    ],
)
def test_rows_and_shares(
    num_images: int, num_processes: int, rows: list[tuple[int, int]], shares: list[float]
) -> None:
    ranks = [Ranks(rank, num_processes) for rank in range(num_processes)]
    slices = [own.rows(num_images) for own in ranks]
    assert [(part.start, part.stop) for part in slices] == rows
    assert [own.share(num_images) for own in ranks] == pytest.approx(shares)


def test_memory_that_runs_out_is_not_blamed_on_others() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="mine"), Ranks()._needing_others():
        raise torch.OutOfMemoryError("mine")


def test_alone_every_exchange_is_over_at_once() -> None:
    ranks, tensor, value = Ranks(), torch.tensor([2.0, 3.0]), {"any": object()}
    ranks.sum([tensor])
    ranks.average([tensor])
    ranks.minimum([tensor])
    ranks.broadcast([tensor])
    ranks.barrier()
    assert tensor.tolist() == [2, 3]
    assert ranks.broadcast_value(value) is value
    with ranks.first_goes_ahead():
        assert ranks.is_first
    assert not torch.distributed.is_initialized()


class TestLaunch:
    @pytest.fixture(autouse=True)
    def started_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)

    def test_without_torchrun_it_is_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Launch.from_environment() == Launch(0, 1, 0)
        with Ranks.started(EngineSettings(device="cpu")) as ranks:
            assert (ranks.rank, ranks.num_processes) == (0, 1)
            assert not torch.distributed.is_initialized()
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert Launch.from_environment() == Launch(0, 1, 0)

    def test_what_torchrun_says_is_heard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in zip(VARIABLES, ("5", "8", "1"), strict=True):
            monkeypatch.setenv(name, value)
        assert Launch.from_environment() == Launch(rank=5, num_processes=8, local_rank=1)

    def test_half_of_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("RANK", "first")
        with pytest.raises(ValueError, match=r"RANK is 'first', .*LOCAL_RANK is ''"):
            Launch.from_environment()

    def test_a_process_without_a_gpu_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in zip(VARIABLES, ("2", "3", "2"), strict=True):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        with (
            pytest.raises(ValueError, match=r"process 2 .* no GPU"),
            Ranks.started(EngineSettings(device="auto")),
        ):
            pass


class TestSynchronisedBatchNorm:
    """On CPUs it cannot run, but it can be put in place."""

    def test_it_has_the_same_tensors_and_goes_again(self) -> None:
        backbone = CifarResNet(8, 3, generator(1)).train()
        before = dict(backbone.named_modules())
        tensors = dict(backbone.state_dict(keep_vars=True))
        norms = {name for name, part in before.items() if type(part) is nn.BatchNorm2d}
        # The stem's and two in each of three blocks.
        assert len(norms) == 7
        with synchronised([backbone]):
            inside = dict(backbone.named_modules())
            assert {n for n, part in inside.items() if type(part) is nn.SyncBatchNorm} == norms
            assert not any(type(part) is nn.BatchNorm2d for part in inside.values())
            assert all(inside[name].training for name in norms)
            now = backbone.state_dict(keep_vars=True)
            assert list(now) == list(tensors)
            assert all(now[name] is tensors[name] for name in tensors)
        assert all(part is before[name] for name, part in backbone.named_modules())
