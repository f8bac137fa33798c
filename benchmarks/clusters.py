"""One study by three engines: the pool, a Ray cluster that loses a node and its driver, Slurm.

    python benchmarks/clusters.py OUT

The Ray cluster has two nodes on this machine, made by Ray's own utility. One is killed when two
runs are recorded, the driver when two more are, both in the middle of runs; the same command then
goes on. Slurm is a stand-in for ``sbatch`` that carries out the tasks of the array here. The tables
must equal those of the pool.
"""

import argparse
import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STUDY = """
title: a tiny study on every engine
reference: der
scales:
  small:
    protocols: {tiny: digits}
    seeds: [1, 2]
    images_per_backbone: 10
    set:
      - data.max_train_per_class=6
      - data.max_test_per_class=4
      - scenario.base=4
      - scenario.increment=3
      - memory.size=20
      - engine.device=cpu
      - methods.grace.base.epochs=12
      - methods.grace.grow.epochs=12
      - methods.grace.compress.epochs=2
      - methods.grace.compress.lr=0.01
      - methods.grace.grow.lr=0.02
      - methods.der.base.epochs=12
      - methods.der.grow.epochs=12
      - methods.replay.base.epochs=12
      - methods.replay.update.epochs=12
rows:
  der: {method: der}
  IFL: {method: grace, set: [method.threshold=0.0]}
  replay: {method: replay, memory: aligned}
  -FL:
    method: grace
    set: [method.initialisation=random, method.threshold=1.0]
    expand_at: from IFL
  pairs: {method: grace, grid: {method.threshold: [0.0, 0.01, 1.0], method.threshold_decay: [0.9]}}
columns: [last, average, backbones, exemplars]
figures: [accuracy]
"""

SBATCH = """#!{python}
import os, subprocess, sys
tasks = next(word for word in sys.argv if word.startswith("--array=")).rpartition("-")[2]
logs = next(word for word in sys.argv if word.startswith("--output=")).partition("=")[2]
for task in range(1, int(tasks) + 1):
    with open(logs.replace("%A", "7").replace("%a", str(task)), "ab") as log:
        subprocess.Popen(
            ["sh", sys.argv[-1]], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
            env=dict(os.environ, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=str(task)),
        )
print("7;here")
"""


def main() -> None:
    """Carry out the study three times and compare the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    study = out / "tiny.yaml"
    study.write_text(STUDY)
    result: dict[str, Any] = {"cells": 14}
    started = time.monotonic()
    _grace(out, "pool", study, "--jobs", "2").wait()
    result["pool seconds"] = round(time.monotonic() - started)
    expected = _table(out / "pool")
    for name, engine in (("ray", _ray), ("slurm", _slurm)):
        started = time.monotonic()
        result[name] = engine(out, study)
        result[f"{name} seconds"] = round(time.monotonic() - started)
        result[f"{name} tables equal"] = _table(out / name) == expected
        result[f"{name} runs equal"] = _runs(out / name) == _runs(out / "pool")
        result[f"{name} ends of runs"] = _ends(out / name)
    result["runs"] = len(_runs(out / "pool"))
    text = json.dumps(result, indent=1)
    (out / "clusters.json").write_text(text)
    sys.stdout.write(text + "\n")


def _grace(out: Path, name: str, study: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-m", "grace", "study", str(study), "--out", str(out / name)]
    with (out / f"{name}.log").open("ab") as log:
        log.write(f"$ {shlex.join([*command, *options])}\n".encode())
        log.flush()
        return subprocess.Popen([*command, *options], stdout=log, stderr=log)


def _ray(out: Path, study: Path) -> dict[str, Any]:
    """Lose a node and the driver in the middle; return what happened."""
    # Ray gives its workers the lowest priority, which nothing else here has.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
    options = ("--ray", cluster.address)
    driver = _grace(out, "ray", study, *options)
    runs = out / "ray" / "runs"
    # Both nodes are in the middle of a run.
    _wait_until(lambda: _num_complete(runs) >= 2 and len(_begun(runs)) == 2)
    at_node, begun = _num_complete(runs), _begun(runs)
    cluster.remove_node(nodes[0], allow_graceful=False)
    _wait_until(lambda: _num_complete(runs) >= at_node + 2 and bool(_begun(runs)))
    at_driver, begun_then = _num_complete(runs), _begun(runs)
    driver.kill()
    driver.wait()
    cluster.add_node(num_cpus=1, **small)
    code = _grace(out, "ray", study, *options).wait()
    cluster.shutdown()
    return {
        "complete when a node was killed": at_node,
        "tasks of its run and of the other node's": begun,
        "complete when the driver was killed": at_driver,
        "tasks of the other node's run": begun_then,
        "signal that ended the driver": signal.Signals(-driver.returncode).name,
        "exit code of the same command": code,
    }


def _slurm(out: Path, study: Path) -> dict[str, Any]:
    """Submit an array of two tasks to a stand-in for sbatch; return what it was given."""
    tools = out / "tools"
    tools.mkdir()
    sbatch = tools / "sbatch"
    sbatch.write_text(SBATCH.format(python=sys.executable))
    sbatch.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(tools), os.environ["PATH"]])
    code = _grace(out, "slurm", study, "--slurm", "--time=1:00:00", "--jobs", "2").wait()
    _wait_until((out / "slurm" / "tiny" / "report.html").exists)
    _wait_until(lambda: _num_complete(out / "slurm" / "runs") == len(_runs(out / "pool")))
    logs = sorted((out / "slurm" / "logs").glob("slurm-7-*.txt"))
    done = [log.read_text().count(" done in ") for log in logs]
    return {"exit code": code, "runs made by each task": done}


def _num_complete(runs: Path) -> int:
    return sum(complete for _, complete in _records(runs))


def _begun(runs: Path) -> list[int]:
    """Return the numbers of finished tasks of the runs that are in the middle."""
    from grace.runs import read_record

    records = [read_record(path.parent) for path in sorted(runs.glob("*/run.json"))]
    return [len(record.tasks) for record in records if record.tasks and not record.complete]


def _records(runs: Path) -> list[tuple[str, bool]]:
    from grace.runs import read_record

    return [
        (path.parent.name, read_record(path.parent).complete)
        for path in sorted(runs.glob("*/run.json"))
    ]


def _runs(folder: Path) -> list[str]:
    """Return the fingerprints of all runs, which are complete, and have each task once."""
    from grace.runs import read_record

    found = []
    for name, complete in _records(folder / "runs"):
        tasks = [task.task for task in read_record(folder / "runs" / name).tasks]
        assert complete, name
        assert tasks == [1, 2, 3], (name, tasks)
        found.append(name[:8])
    return found


def _ends(folder: Path) -> list[int]:
    """Return how often each run has learnt its last task to the end, by the row that it prints."""
    logs = [path for path in sorted((folder / "logs").glob("*.txt")) if len(path.stem) == 64]
    return [len(re.findall(r"^ +3 +\d+\.\d ", log.read_text(), re.MULTILINE)) for log in logs]


def _table(folder: Path) -> list[list[str]]:
    with (folder / "tiny" / "table.csv").open(newline="") as file:
        return list(csv.reader(file))


def _wait_until(condition: Callable[[], bool], seconds: float = 1200) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.2)


if __name__ == "__main__":
    main()
