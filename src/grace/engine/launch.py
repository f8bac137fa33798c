"""The rank of this process among those that torchrun started. Torch-free."""

import os
from dataclasses import dataclass
from typing import Self, final

from grace.base.errors import GraceError


@final
@dataclass(frozen=True)
class Launch:
    """The place of this process among all.

    Args:
        rank: this process among all, from 0.
        num_processes: number of processes that were started together.
        local_rank: this process among those of its machine, from 0.
    """

    rank: int = 0
    num_processes: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Self:
        """Read the variables that torchrun sets; without them there is one process.

        Raises:
            GraceError: if there are several processes and the rank of this one is missing or not
                among them: its start would wait for the others without end.
        """
        if os.environ.get("WORLD_SIZE", "1") == "1":
            return cls()
        given = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        if all(value.isdecimal() for value in given.values()):
            rank, num_processes, local_rank = map(int, given.values())
            if max(rank, local_rank) < num_processes:
                return cls(rank, num_processes, local_rank)
        said = ", ".join(f"{name} is '{value}'" for name, value in given.items())
        raise GraceError(
            f"{said}: ranks are numbers from 0 to WORLD_SIZE - 1",
            "start several processes with torchrun, or unset WORLD_SIZE",
        )
