"""Start two processes as torchrun starts them; ``test_torchrun`` reads what they find.

Each is a fork of this process, which has imported all that is imported late: torch's compiler
and scikit-learn alone take three seconds. torchrun itself is ``elastic_launch`` and a parser of
its command line.
"""

import importlib
import sys
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from support import failing_processes, two_processes

for late in ("sklearn.datasets", "torch._dynamo", "grace.cli.run"):
    importlib.import_module(late)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    # Before torchrun's threads: a fork has only the thread that forks.
    failing_processes.find(folder)
    # By number, as the name of a machine without a network may lead nowhere.
    standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "local_addr": "127.0.0.1"}
    here = LaunchConfig(1, 1, 2, run_id="suite", max_restarts=0, start_method="fork", **standalone)
    elastic_launch(here, two_processes.find)(folder)
