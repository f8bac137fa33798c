"""Calls of ``grace`` in a process of their own, one after the other: Python starts once."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

SOURCE = Path(__file__).parents[2] / "src"

_SCRIPT = """
import contextlib, io, json, sys
from grace.cli import main

heavy = set(json.loads(sys.argv[1]))
calls = json.loads(sys.argv[2])
exec(sys.argv[3])
for arguments in calls:
    outputs = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    sys.argv = ["grace", *arguments]
    with contextlib.redirect_stdout(outputs[0]), contextlib.redirect_stderr(outputs[1]):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    assert not heavy & set(sys.modules), (arguments, heavy & set(sys.modules))
    for output in outputs:
        output.flush()
    print(json.dumps([code, *(output.buffer.getvalue().decode() for output in outputs)]))
"""


@final
@dataclass(frozen=True)
class Ended:
    """How one call ended."""

    exit_code: int
    stdout: str
    stderr: str


def calls(
    *calls: Sequence[str | Path],
    paths: Sequence[Path] = (),
    without: Sequence[str] = (),
    before: str = "",
) -> list[Ended]:
    """Call ``grace`` several times in one new process, warnings being errors.

    Args:
        calls: the arguments of each call.
        paths: folders in which Python also looks for packages.
        without: modules that none of the calls may import.
        before: Python to execute before the first call.
    """
    words = [[str(word) for word in call] for call in calls]
    given = [json.dumps([*without]), json.dumps(words), before]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT, *given],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*paths, SOURCE)))},
    )
    assert done.returncode == 0, done.stderr
    return [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
