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
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        try:
            rank, num_processes, local_rank = (int(os.environ[name]) for name in names)
        except (KeyError, ValueError):
            missing = [name for name in names if not os.environ.get(name, "").isdecimal()]
            raise GraceError(
                f"WORLD_SIZE is '{os.environ['WORLD_SIZE']}', but {', '.join(missing)} is no "
                "number",
                "start several processes with torchrun, or unset WORLD_SIZE",
            ) from None
        if not 0 <= rank < num_processes or not 0 <= local_rank < num_processes:
            raise GraceError(
                f"RANK is {rank} and LOCAL_RANK {local_rank}, but WORLD_SIZE is {num_processes}: "
                f"ranks go from 0 to {max(0, num_processes - 1)}",
                "start several processes with torchrun, or unset WORLD_SIZE",
            )
        return cls(rank, num_processes, local_rank)
