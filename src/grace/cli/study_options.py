"""The arguments and options of ``grace study``."""

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import argument, option

Arguments = Annotated[
    list[str] | None,
    argument(
        metavar="NAME|KEY=VALUE",
        help="A packaged study or a YAML file, then settings for every run. Without a name: "
        "list the studies.",
    ),
]
Scale = Annotated[str, option(help="small or published. Default: small if the study has it.")]
Protocols = Annotated[str, option(help="Comma-separated. Default: all.")]
Rows = Annotated[str, option(help="Comma-separated. Default: all.")]
Seeds = Annotated[str, option(help="1,2,3 or 1-3. Default: the scale's.")]
Jobs = Annotated[
    int | None, option(min=1, help="Runs at a time. Default: as many as cores and memory allow.")
]
JobsPerGpu = Annotated[
    int | None,
    option(
        min=1,
        help="Runs that share a GPU. Default: as many small ones as its memory allows, and one of "
        "images above 64 pixels.",
    ),
]
Out = Annotated[
    Path, typer.Option(file_okay=False, help="Folder of all studies, which share their runs.")
]
Runs = Annotated[
    list[Path] | None,
    option(help="Another folder in which to look for finished runs; repeatable."),
]
Ray = Annotated[
    str,
    option(
        metavar="ADDRESS",
        help="Make the runs on a Ray cluster that shares the folder: auto, or HOST:PORT.",
    ),
]
Slurm = Annotated[
    str | None,
    option(
        metavar="OPTIONS",
        help="Submit the runs to Slurm as one array job with these options of sbatch, such as "
        "'--partition=gpu --gres=gpu:1'; --jobs limits its tasks.",
    ),
]
Search = Annotated[
    int | None,
    option(
        min=1,
        max=500,
        metavar="N",
        help="In place of the study's grid, let Optuna choose N pairs of threshold and decay for "
        "each protocol.",
    ),
]
Storage = Annotated[
    str,
    option(metavar="URL", help="Database of the search. Default: a journal in its folder."),
]
ArrayTask = Annotated[bool, typer.Option("--array-task", hidden=True)]
Plan = Annotated[bool, typer.Option("--plan", help="Only tell what is done and what is left.")]
