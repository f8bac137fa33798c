"""Runs of two processes that end badly, and what each process says; ``test_torchrun`` reads it.

Each run's processes are forked from one that has imported everything, and ended as torchrun ends
them: once one has failed, the others are told to stop.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import grace.runs.run
from grace.base.errors import GraceError
from grace.cli import main
from grace.data.images import TensorImages
from grace.engine.ranks import Ranks
from grace.runs.record import RecordWriter
from grace.runs.stream import Stream
from support.tiny_streams import dataset

WORDS = [
    *("digits", "method=der", "method.base.epochs=1", "method.grow.epochs=1"),
    *("data.max_train_per_class=12", "data.max_test_per_class=4", "engine.device=cpu"),
    *("engine.compile=false", "engine.threads=1"),
]
Act = Callable[[int, Path], None]


def command(folder: Path, *words: str) -> None:
    sys.argv = ["grace", "run", *WORDS, "--no-report", "--out", str(folder / "record"), *words]
    main()


def no_data(rank: int, folder: Path) -> None:
    """The first process finds nothing; the other one waits for it."""
    command(folder, "data.source=folder", f"data.root={folder / 'nothing'}")


def full(rank: int, folder: Path) -> None:
    """The loss leaves the numbers in both, and the first one is slow to write so."""
    fail = RecordWriter.fail

    def late(record: RecordWriter, error: BaseException | str) -> Any:
        time.sleep(1)
        return fail(record, error)

    RecordWriter.fail = late  # type: ignore[method-assign]
    command(folder, "method.base.lr=1e30", "method.base.epochs=2")


def alone(rank: int, folder: Path) -> None:
    """Only the second process fails, and nobody is told to stop."""
    learn = Stream.learn

    def failing(made: Stream, *arguments: Any) -> Any:
        if rank:
            raise GraceError("only here")
        return learn(made, *arguments)

    Stream.learn = failing  # type: ignore[method-assign]
    Ranks.patience_after_error = timedelta(seconds=0.5)
    command(folder)


def other_settings(rank: int, folder: Path) -> None:
    command(folder, f"method.base.lr=0.0{rank + 1}")


def other_data(rank: int, folder: Path) -> None:
    """One level of one pixel differs."""
    found = dataset(4)
    pixels = found.train.images.gather(torch.arange(len(found.train))).clone()
    pixels[7, 0, 3, 3] ^= rank
    train = replace(found.train, images=TensorImages(pixels))
    grace.runs.run.load_dataset = lambda _: replace(found, train=train)
    command(folder)


def started(act: Act, rank: int, folder: Path) -> int:
    """Fork one process, whose output goes to a file; give its number."""
    number = os.fork()
    if number:
        return number
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    with (folder / f"{rank}.txt").open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code: Any = 0
    try:
        act(rank, folder)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(processes: list[int], *, stops_all: bool) -> list[int]:
    """Wait for both; give their exit codes, negative ones for signals."""
    codes: dict[int, int] = {}
    for _ in processes:
        number, status = os.wait()
        codes[number] = os.waitstatus_to_exitcode(status)
        if stops_all and codes[number]:
            # torchrun looks ten times a second: time enough to say what should not be said.
            time.sleep(0.3)
            for other in set(processes) - codes.keys():
                os.kill(other, signal.SIGTERM)
    return [codes[number] for number in processes]


@contextmanager
def kept_store() -> Iterator[int]:
    """Keep a store in a process that outlives the others, as torchrun does; give its port."""
    reading, writing = os.pipe()
    keeper = os.fork()
    if not keeper:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, f"{store.port}\n".encode())
        time.sleep(100)
        os._exit(0)
    try:
        with os.fdopen(reading) as pipe:
            yield int(pipe.readline())
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)


def find(folder: Path) -> None:
    """Write down how each run ended: what its processes said, their exit codes, the record."""
    found = {}
    for act in (no_data, full, alone, other_settings, other_data):
        place = folder / act.__name__
        place.mkdir()
        with kept_store() as port:
            os.environ |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            processes = [started(act, rank, place) for rank in (0, 1)]
            codes = ended(processes, stops_all=act is not alone)
        record = place / "record" / "run.json"
        info = json.loads(record.read_text()) if record.exists() else {}
        said = [(place / f"{rank}.txt").read_text() for rank in (0, 1)]
        facts = {"said": said, "codes": codes, "record": [info.get("status"), info.get("error")]}
        found[act.__name__] = facts
    (folder / "failed.json").write_text(json.dumps(found))
