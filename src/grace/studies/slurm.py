"""Submit a study to Slurm as one array job, whose tasks take runs until none is left.

The script has ten lines and needs no library: submitit would bring serialised functions, a folder
for each task and a process that waits, where the records here already say what is done.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from grace.base.atomic import write_text
from grace.base.errors import GraceError
from grace.base.files import inside
from grace.base.words import one_line
from grace.studies.machine import own_command, run_environment

_REFUSED = ("--array", "-a", "--wrap", "--output", "-o", "--parsable", "--help", "-h")


def sbatch_options(text: str) -> list[str]:
    """Split the user's options for ``sbatch``.

    Every word must be an option with its value: ``sbatch`` takes any other word as the script.

    Args:
        text: such as "--partition=gpu --gres=gpu:1 --time=24:00:00".

    Raises:
        GraceError: for a word that is no option, one that the study sets, or a control character.
    """
    if not text.isprintable():
        raise GraceError("--slurm has a line break or a control character", "write one line")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise GraceError(f"--slurm {text!r}: {error}", "close the quotation") from None
    for word in words:
        name = word.partition("=")[0]
        if not re.fullmatch(r"--[a-z][a-z-]*(=.+)?|-[a-zA-Z][^=\s]*", word):
            raise GraceError(
                f"--slurm: {word!r} is no option of sbatch", "write a value as --name=value"
            )
        # sbatch takes --arr for --array, and -a1-9 for -a 1-9.
        is_long = name.startswith("--")
        if any(own.startswith(name) if is_long else own == name[:2] for own in _REFUSED):
            raise GraceError(f"--slurm: {name} is set by the study", "use --jobs for its tasks")
    return words


def submit(
    arguments: Sequence[str], options: Sequence[str], num_tasks: int, out: Path, name: str
) -> str:
    """Write the script of an array job and submit it; return its id.

    Args:
        arguments: of ``grace``, for each task.
        options: for ``sbatch``.
        num_tasks: tasks of the array, at least 1.
        out: folder of all studies; ``logs/`` in it gets the output of the tasks.
        name: name of the study.

    Raises:
        GraceError: if there is no ``sbatch``, or it refuses.
    """
    script = inside(out, name, "slurm.sh").absolute()
    logs = str(inside(out, "logs").absolute())
    if set(logs) & set("%\\") or not logs.isprintable():
        raise GraceError(
            f"--slurm: the folder {logs!r} has %, \\ or a control character in its name, which "
            "means something else to sbatch",
            "choose another --out",
        )
    write_text(script, script_of(arguments))
    command = [
        "sbatch",
        "--parsable",
        f"--job-name=grace-{name}",
        f"--array=1-{num_tasks}",
        f"--output={logs}/slurm-%A-%a.txt",
        "--open-mode=append",
        "--requeue",
        *options,
        str(script),
    ]
    try:
        return _submitted(command)
    except BaseException:
        script.unlink()  # sbatch keeps a copy of what it takes.
        raise


def _submitted(command: Sequence[str]) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    except FileNotFoundError:
        raise GraceError(
            "--slurm: there is no sbatch here", "call it on a machine that may submit jobs"
        ) from None
    found = re.match(r"\d+", ended.stdout.strip())
    if ended.returncode or found is None:
        said = ended.stderr.strip() or ended.stdout.strip() or "it printed nothing"
        raise GraceError(
            f"--slurm: sbatch refused: {one_line(said)}",
            "correct the options, or ask for fewer tasks by --jobs",
        )
    return found[0]


def script_of(arguments: Sequence[str]) -> str:
    """Return the script of a task: the same Python and package, in the folder of this call.

    Args:
        arguments: of ``grace``.
    """
    variables = {
        name: value for name, value in run_environment(1).items() if name != "OMP_NUM_THREADS"
    }
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines = [
        "#!/bin/sh",
        "# Written by 'grace study --slurm'. Each task takes runs until none is left.",
        "set -e",
        f"cd -- {shlex.quote(str(Path.cwd()))}",
        *exports,
        f"exec {shlex.join(own_command(*arguments))}",
    ]
    return "\n".join(lines) + "\n"
