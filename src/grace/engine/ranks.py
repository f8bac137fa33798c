"""The processes of a run: one, or several that torchrun started.

Every process runs the same program on the same settings, so that all of them reach the same
exchanges in the same order. Where rounding could make processes differ, the first process
broadcasts its value to the others.

Shapes: B rows in a batch.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from grace.base import strict_json, tensors
from grace.base.errors import GraceError
from grace.engine.checkpoint import put_together, take_apart
from grace.engine.device import device_name
from grace.engine.launch import Launch
from grace.settings.experiment import EngineSettings

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_SAID_BY_FIRST = "the first process ended with the same words"


@final
class PeerGoneError(ConnectionError):
    """Another process has ended or cannot be reached, so that this one cannot go on."""


def is_said_elsewhere(error: BaseException) -> bool:
    """Return True if another process reports this error to people."""
    said = _SAID_BY_FIRST in getattr(error, "__notes__", ())
    return said or isinstance(error, PeerGoneError)


@final
class Ranks:
    """This process and its exchanges with the others; a single process exchanges nothing.

    Args:
        rank: of this process, from 0.
        num_processes: in all; more than one needs torch's process group, see ``started``.
        store: the first process writes there why it ended; ``None`` for a single process.
    """

    patience_after_error: ClassVar[timedelta] = timedelta(seconds=10)
    """How long a process that failed waits for the first process to fail too."""
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

        A single process does nothing here. On GPUs, each process uses the GPU of its local rank. If
        an error ends all processes, the first process ends first.

        Raises:
            GraceError: if there are fewer GPUs than processes; see also ``Launch``.
            PeerGoneError: within the context, after another process has ended.
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
            # Broadcast values, such as records and features, are on the CPU on any device.
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
        """Store why the first process ends; in others, compare with their own error.

        torchrun ends all processes once one has ended. That must not be before the first process
        has reported its error; but an error may well be this process's alone.
        """
        words = f"{type(error).__name__}: {error}"
        assert self._store is not None
        # The store may be gone, or the first process may have stored nothing.
        with suppress(dist.DistError):
            if self.is_first:
                self._store.set("end", words)
            elif (
                not isinstance(error, PeerGoneError)
                and self._last_words(self.patience_after_error) == words
            ):
                error.add_note(_SAID_BY_FIRST)

    def _last_words(self, patience: timedelta = timedelta()) -> str | None:
        """Return why the first process ended; ``None`` if it has not stored that in time."""
        assert self._store is not None
        until = time.monotonic() + patience.total_seconds()
        # The store's own way to wait warns people when it was in vain.
        while not (said := self._store.check(["end"])) and time.monotonic() < until:
            time.sleep(0.05)
        return self._store.get("end").decode() if said else None

    @contextmanager
    def _needing_others(self) -> Iterator[None]:
        """Raise ``PeerGoneError`` for an exchange that fails: another process is not there."""
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
        """True for the process that writes files and broadcasts values."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        """True if there is more than one process."""
        return self.num_processes > 1

    def refuse_unequal(self, facts: Mapping[str, object]) -> None:
        """Refuse facts about the run that are not those of the first process.

        Args:
            facts: what JSON can hold, by a name in the plural for messages.

        Raises:
            GraceError: in every process, with the same message.
        """
        own = {n: hashlib.sha256(strict_json.dump(fact)).hexdigest() for n, fact in facts.items()}
        first = self.broadcast_value(own)
        unlike = [name for name, digest in own.items() if digest != first[name]]
        least = torch.tensor([self.rank if unlike else self.num_processes])
        self.minimum([least])
        if int(least) < self.num_processes:
            name = self.broadcast_value(unlike[0] if unlike else None, source=int(least))
            raise GraceError(
                f"the {name} of process {int(least)} are not those of process 0",
                f"give all processes the same {name}",
            )

    def rows(self, num_images: int) -> slice:
        """Return this process's rows of a batch.

        Rows are shared evenly, but no process gets a single row of several: batch norm could not
        estimate a variance from it. A process without rows borrows those of the first process, so
        that it takes part in every exchange; its ``share`` is 0.
        """
        parts = self._num_parts(num_images)
        part = self.rank if self.rank < parts else 0
        return slice(num_images * part // parts, num_images * (part + 1) // parts)

    def share(self, num_images: int) -> float:
        """Return this process's share of a batch's rows, in [0, 1]; 0 for borrowed rows."""
        if self.rank >= self._num_parts(num_images):
            return 0.0
        return len(range(num_images)[self.rows(num_images)]) / num_images

    def gather(self, rows: Tensor, num_images: int, views: int = 1) -> Tensor:
        """Collect the rows of a batch from all processes, with gradients.

        Args:
            rows: of this process (B, …), ``views`` for each of its images; any dtype.
            num_images: images of the whole batch.
            views: rows of each image.

        Returns:
            ``views · num_images`` rows in the order of the batch, the same on every rank. In the
            backward pass, each row gets the sum of its gradients on all ranks.
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
        """Replace tensors of any shape by their sums over the processes, bit-identical on all."""
        self._exchange(tensors, lambda tensor: dist.all_reduce(tensor))

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace floating-point tensors of any shape by their means over the processes."""

        def mean(tensor: Tensor) -> None:
            dist.all_reduce(tensor)
            tensor /= self.num_processes

        self._exchange(tensors, mean)

    def minimum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of any shape by their least values over the processes."""
        self._exchange(tensors, lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.MIN))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of any shape by those of the first process."""
        self._exchange(tensors, lambda tensor: dist.broadcast(tensor, 0))

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.are_several:
            self.sum([torch.zeros(1)])

    @contextmanager
    def first_goes_ahead(self) -> Iterator[None]:
        """Let the first process go through the context before the others: it may download files."""
        if not self.is_first:
            self.barrier()
        yield
        if self.is_first:
            self.barrier()

    def broadcast_value(self, value: Any, source: int = 0) -> Any:  # noqa: ANN401 - a value of ``take_apart``
        """Return one process's value on every process.

        Args:
            value: a tensor, ``None``, a number or text, or a mapping or list of such values. Ranks
                other than the source may give anything; they get tensors on the CPU and tuples
                as lists.
            source: rank whose value is broadcast.
        """
        if not self.are_several:
            return value
        data, is_source = torch.empty(0, dtype=torch.uint8), self.rank == source
        if is_source:
            kept: dict[str, Tensor] = {}
            text = strict_json.dump(take_apart(value, kept)).decode()
            encoded = tensors.encode(kept, {"value": text})
            data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        size = torch.tensor(len(data))
        with self._needing_others():
            dist.broadcast(size, source)
            if not is_source:
                data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, source)
        if is_source:
            return value
        what = "a broadcast value"
        kept, metadata = tensors.decode(data.numpy().tobytes(), what)
        return put_together(strict_json.parse(metadata["value"].encode(), what), kept)

    def _exchange(self, tensors: Sequence[Tensor], work: Callable[[Tensor], object]) -> None:
        """Run a collective on the tensors joined to one of each dtype and device."""
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
    """Rows of all processes; in the backward pass, each row gets its gradients from all ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: slice | None, total: int, ranks: Ranks) -> Tensor:  # noqa: ANN401 - torch's
        ctx.place, ctx.ranks, ctx.num_rows = place, ranks, len(rows)
        everyone = rows.new_zeros((total, *rows.shape[1:]))
        # Borrowed rows are given by the process that they belong to.
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
