"""Group runs that differ only in their seeds; means and standard deviations over a group."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, final

from grace.configs.flat import flatten
from grace.configs.registry import METHODS
from grace.record import RunRecord


@final
@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n − 1) of some runs; one run has no deviation."""

    mean: float
    deviation: float | None
    count: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and deviation of the values; ``None`` if one is unknown or there are none."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    if not known or len(known) < len(listed):
        return None
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


@final
@dataclass(frozen=True)
class Group:
    """Runs of one experiment, method and settings; ``variant`` says how it differs from others."""

    experiment: str
    method: str
    variant: str
    records: tuple[RunRecord, ...]

    @property
    def label(self) -> str:
        """The method's name and the settings that set the group apart."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def complete(self) -> tuple[RunRecord, ...]:
        """The runs that finished all their tasks."""
        return tuple(record for record in self.records if record.complete)

    def over_runs(self, value: Callable[[RunRecord], float | None]) -> Spread | None:
        """Summarise a number over the complete runs."""
        return spread(value(record) for record in self.complete)


def group_records(records: Sequence[RunRecord]) -> list[Group]:
    """Group runs by experiment, method and settings, seeds and execution aside.

    Groups come by experiment, then in the registry's order of methods. Where one experiment holds
    a method more than once, the groups are labelled with the settings that differ.
    """
    members: dict[tuple[str, str, str], list[RunRecord]] = {}
    for record in records:
        key = (record.info.experiment, record.method, json.dumps(_deciding(record), sort_keys=True))
        members.setdefault(key, []).append(record)
    known = list(METHODS)
    order = sorted(
        members,
        key=lambda key: (key[0], known.index(key[1]) if key[1] in known else len(known), key[1]),
    )
    groups = []
    for experiment, method, settings in order:
        beside = [json.loads(k[2]) for k in members if k[:2] == (experiment, method)]
        variant = _difference(json.loads(settings), beside)
        runs = sorted(
            members[experiment, method, settings],
            key=lambda record: (record.seed if record.seed is not None else -1, record.directory),
        )
        groups.append(Group(experiment, method, variant, tuple(runs)))
    return groups


def _deciding(record: RunRecord) -> dict[str, Any]:
    """Return the settings that decide a result, except the seeds, by dotted path."""
    aside = ("seeds.", "engine.", "name", "description", "data.root", "data.streaming")
    flat = flatten(record.info.config)
    return {
        key: value
        for key, value in flat.items()
        if not key.startswith(aside) or key == "engine.precision"
    }


def _difference(settings: Mapping[str, Any], beside: Sequence[Mapping[str, Any]]) -> str:
    keys = dict.fromkeys(key for other in beside for key in other)
    differing = [key for key in keys if any(o.get(key) != settings.get(key) for o in beside)]
    parts = [f"{key.removeprefix('method.')}={_short(settings.get(key))}" for key in differing]
    return ", ".join(parts[:4]) + (", …" if len(parts) > 4 else "")


def _short(value: object) -> str:
    text = (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
    return text if len(text) <= 24 else f"{text[:23]}…"
