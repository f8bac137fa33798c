"""Refuse processes of one run that differ in settings, packages or data, before any learns."""

import json
import platform
from collections.abc import Mapping
from typing import Any

import torch

from grace.base.errors import GraceError
from grace.data.images import Dataset
from grace.engine.device import device_name
from grace.engine.ranks import Ranks
from grace.settings.experiment import ExperimentSettings
from grace.settings.flat import flatten

_LONGEST = 60
"""Characters of a value in a message."""


def refuse_other_settings(
    settings: ExperimentSettings, versions: Mapping[str, str], ranks: Ranks
) -> None:
    """Refuse settings and versions that are not those of the first process.

    The folder of the files, streaming and the number of threads may differ between machines.

    Args:
        settings: of this process.
        versions: of the packages that this process uses.
        ranks: the processes; this exchange must be their first.

    Raises:
        GraceError: in every process, with the same message.
    """
    facts = flatten(settings.model_dump(mode="json"))
    for name in ("data.root", "data.streaming", "engine.threads"):
        del facts[name]
    facts["engine.device"] = device_name(settings.engine)
    facts |= {f"the version of {package}": version for package, version in versions.items()}
    _refuse_differences(facts, "start all with the same settings and the same packages", ranks)


def refuse_other_data(dataset: Dataset, digest: str, root: str | None, ranks: Ranks) -> None:
    """Refuse data that are not those of the first process.

    Args:
        dataset: that this process read.
        digest: hash of its images and labels.
        root: folder that it was read from; ``None`` if none was set.
        ranks: the processes.

    Raises:
        GraceError: in every process, with the same message.
    """
    facts: dict[str, Any] = {
        "the number of classes": len(dataset.class_names),
        "the number of training images": len(dataset.train),
        "the number of test images": len(dataset.test),
        **{f"the name of class {i}": name for i, name in enumerate(dataset.class_names)},
        "the hash of images and labels": digest[:16],
    }
    place = f"there put the same files into '{root}'" if root else "put the same files there"
    _refuse_differences(facts, f"{place}, or set data.root to a folder that all share", ranks)


def _refuse_differences(own: Mapping[str, Any], remedy: str, ranks: Ranks) -> None:
    """Raise in all processes, naming the first fact of the first process that differs."""
    mine = {name: json.dumps(value, ensure_ascii=False) for name, value in own.items()}
    first = ranks.broadcast_value({"host": platform.node(), "facts": mine})
    theirs = first["facts"]
    # Facts that only one of the two has come after those that both have.
    differing = [name for name in mine if name in theirs and mine[name] != theirs[name]]
    differing += sorted(mine.keys() ^ theirs.keys())
    source = torch.tensor([ranks.rank if differing else ranks.num_processes])
    ranks.minimum([source])
    if int(source) == ranks.num_processes:
        return
    text = None
    if ranks.rank == int(source):
        name = differing[0]
        text = (
            f"{name} is {_short(mine.get(name))} in process {ranks.rank} on {platform.node()}, but "
            f"{_short(theirs.get(name))} in process 0 on {first['host']}"
        )
    raise GraceError(ranks.broadcast_value(text, source=int(source)), remedy)


def _short(value: str | None) -> str:
    text = "not set" if value is None else value
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
