"""The processes that carry a run out together: one, or several that torchrun started.

Every process runs the same program on the same settings, so that all of them meet the same
exchanges in the same order. What the first one finds out where rounding could make processes
differ, the others are told.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from grace.configs.experiment import EngineSettings
from grace.engine.device import device_name
from grace.engine.launch import Launch
from grace.storage import values
from grace.text.refusals import GraceError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_SAID_BY_FIRST = "the first process ended with the same words"


@final
class PeerGoneError(ConnectionError):
    """Another process has ended or cannot be reached; it knows why, and this one cannot go on."""


def is_said_elsewhere(error: BaseException) -> bool:
    """Say whether a process other than this one tells people of what ended it."""
    said = _SAID_BY_FIRST in getattr(error, "__notes__", ())
    return said or isinstance(error, PeerGoneError)


@final
class Ranks:
    """This process among those that work together; alone, every exchange is over at once.

    Args:
        rank: of this process, from 0.
        num_processes: in all; more than one needs torch's process group, see ``started``.
        store: where the first one leaves word of why it ended; none if nobody would read it.
    """

    patience_after_error: ClassVar[timedelta] = timedelta(seconds=10)
    """How long a process that failed waits for the first one to have failed too."""
    _starts: ClassVar[int] = 0

    def __init__(self, rank: int = 0, num_processes: int = 1, store: "Store | None" = None) -> None:
        assert 0 <= rank < num_processes
        self.rank = rank
        self.num_processes = num_processes
        self._store = store

    @classmethod
    @contextmanager
    def started(cls, settings: EngineSettings) -> Iterator["Ranks"]:
        """Join the processes that torchrun started, for as long as the context lasts.

        A process that was started alone does nothing here. On GPUs each takes that of its local
        rank. An error that ends the context in all of them ends the first one's first.

        Raises:
            ValueError: if there are fewer GPUs than processes, or see ``Launch``.
            PeerGoneError: within the context, once another process has gone.
        """
        launch = Launch.from_environment()
        if launch.num_processes == 1:
            yield cls()
            return
        device = device_name(settings)
        if device == "cuda":
            _take_gpu(launch.local_rank)
        rank, size = launch.rank, launch.num_processes
        # Whoever waits for the first process may wait long; torchrun ends all when one fails.
        patience = timedelta(days=7)
        store = next(rendezvous("env://", rank, size, timeout=patience))[0]
        # Every process counts its starts: a second group must not meet the traces of the first.
        cls._starts += 1
        store = dist.PrefixStore(f"grace/{cls._starts}", store)  # type: ignore[attr-defined]
        dist.init_process_group(
            # What is told, such as records and features, is on the CPU wherever the work is done.
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=patience,
        )
        ranks = cls(rank, size, store)
        try:
            yield ranks
        except Exception as error:
            ranks._end(error)
            raise
        # Not after an error: the others may not come, and the process is about to end.
        dist.destroy_process_group()

    def _end(self, error: Exception) -> None:
        """Leave word of why the first process ends; in others, hear whether it ends alike.

        torchrun ends all with the first that ends. That must not be before the first process has
        written down why; but an error may well be this process's alone.
        """
        words = f"{type(error).__name__}: {error}"
        assert self._store is not None
        # Nobody may keep the store any more, or nobody leave word.
        with suppress(dist.DistError):
            if self.is_first:
                self._store.set("end", words)
            elif (
                not isinstance(error, PeerGoneError)
                and self._last_words(self.patience_after_error) == words
            ):
                error.add_note(_SAID_BY_FIRST)

    def _last_words(self, patience: timedelta = timedelta()) -> str | None:
        """Hear why the first process ended; none if it has not said so in time."""
        assert self._store is not None
        until = time.monotonic() + patience.total_seconds()
        # The store's own way to wait warns people when it was in vain.
        while not (said := self._store.check(["end"])) and time.monotonic() < until:
            time.sleep(0.05)
        return self._store.get("end").decode() if said else None

    @contextmanager
    def _needing_others(self) -> Iterator[None]:
        """Turn the failure of an exchange into what it tells of: somebody is not there."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise  # It is a RuntimeError, too, but this process's own.
        except RuntimeError as error:
            words = None
            with suppress(dist.DistError):
                words = None if self.is_first else self._last_words()
            reason = " ".join((words or "look at what it, or torchrun, printed").split())
            raise PeerGoneError(
                f"another process has ended or cannot be reached: {reason}"
            ) from error

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and tells."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        """Whether there is anybody else."""
        return self.num_processes > 1

    def rows(self, num_images: int) -> slice:
        """Say which rows of a batch are this process's.

        They are shared out evenly, but nobody gets a single one of several, from which batch norm
        could estimate no variance. A process left without rows borrows the first one's, so that it
        goes through the same motions; its ``share`` is 0.
        """
        parts = self._num_parts(num_images)
        part = self.rank if self.rank < parts else 0
        return slice(num_images * part // parts, num_images * (part + 1) // parts)

    def share(self, num_images: int) -> float:
        """Say which share of a batch this process's rows are, in [0, 1]; 0 of borrowed ones."""
        if self.rank >= self._num_parts(num_images):
            return 0.0
        return len(range(num_images)[self.rows(num_images)]) / num_images

    def gather(self, rows: Tensor, num_images: int, views: int = 1) -> Tensor:
        """Collect the rows of a batch from all processes, with gradients.

        Args:
            rows: of this process (B, …), ``views`` for each of its images; numbers of any type.
            num_images: images of the whole batch.
            views: rows of each image.

        Returns:
            ``views · num_images`` rows in the order of the batch, alike on all processes. Each
            process gets back, through its own rows, the gradients of all.
        """
        if not self.are_several:
            return rows
        own = self.rows(num_images)
        place = slice(views * own.start, views * own.stop) if self.share(num_images) else None
        gathered: Tensor = _Gathered.apply(rows, place, views * num_images, self)
        return gathered

    def _num_parts(self, num_images: int) -> int:
        assert num_images > 0
        return min(self.num_processes, max(1, num_images // 2))

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the processes, the same bits on all of them."""
        self._exchange(tensors, lambda tensor: dist.all_reduce(tensor))

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace floating-point tensors by their means over the processes."""

        def mean(tensor: Tensor) -> None:
            dist.all_reduce(tensor)
            tensor /= self.num_processes

        self._exchange(tensors, mean)

    def minimum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their least values over the processes."""
        self._exchange(tensors, lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.MIN))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by the first process's."""
        self._exchange(tensors, lambda tensor: dist.broadcast(tensor, 0))

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.are_several:
            self.sum([torch.zeros(1)])

    @contextmanager
    def first_goes_ahead(self) -> Iterator[None]:
        """Let the first process through the context before the others: it may fetch files."""
        if not self.is_first:
            self.barrier()
        yield
        if self.is_first:
            self.barrier()

    def broadcast_value(self, value: Any, source: int = 0) -> Any:  # noqa: ANN401 - what ``values`` can write
        """Return one process's value on every process.

        Args:
            value: a tensor, none, a number or text, or a mapping or list of such values. The other
                processes' own do not matter. They get tensors on the CPU and tuples as lists.
            source: rank of the process that tells.
        """
        if not self.are_several:
            return value
        data, tells = torch.empty(0, dtype=torch.uint8), self.rank == source
        if tells:
            data = torch.frombuffer(bytearray(values.encode(value)), dtype=torch.uint8)
        size = torch.tensor(len(data))
        with self._needing_others():
            dist.broadcast(size, source)
            if not tells:
                data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, source)
        return value if tells else values.decode(data.numpy().tobytes(), "what was told")

    def _exchange(self, tensors: Sequence[Tensor], work: Callable[[Tensor], object]) -> None:
        """Do a collective's work on tensors as on one; it may change what it is given."""
        if not self.are_several:
            return
        with torch.no_grad():
            for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
                own = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
                joined = torch.cat([tensor.reshape(-1) for tensor in own])
                with self._needing_others():
                    work(joined)
                parts = joined.split([tensor.numel() for tensor in own])
                for tensor, part in zip(own, parts, strict=True):
                    tensor.copy_(part.view(tensor.shape))


class _Gathered(torch.autograd.Function):
    """Rows of all processes; the gradients of all of them come back to each row's process."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: slice | None, total: int, ranks: Ranks) -> Tensor:  # noqa: ANN401 - torch's
        ctx.place, ctx.ranks, ctx.num_rows = place, ranks, len(rows)
        everyone = rows.new_zeros((total, *rows.shape[1:]))
        # Rows that are borrowed from another process are that one's to give.
        if place is not None:
            everyone[place] = rows
        ranks.sum([everyone])
        return everyone

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's
        (gradient,) = (given.clone(memory_format=torch.contiguous_format) for given in gradients)
        ctx.ranks.sum([gradient])
        own = gradient[ctx.place] if ctx.place is not None else gradient[: ctx.num_rows] * 0
        return own, None, None, None


def _take_gpu(local_rank: int) -> None:
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise GraceError(
            f"process {local_rank} of this machine has no GPU of its own, torch sees {num_gpus}",
            f"start torchrun with --nproc-per-node {num_gpus}, or set engine.device=cpu",
        )
    torch.cuda.set_device(local_rank)
