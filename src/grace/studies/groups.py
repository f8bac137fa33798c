"""Group runs that differ only in their seeds; means and standard deviations over a group."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, final

from grace.runs import RunRecord
from grace.runs.model import as_time
from grace.settings.flat import flatten
from grace.settings.registry import METHODS


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
    """Runs of one experiment, method, settings and data, each once.

    Args:
        experiment: name of the experiment.
        method: name of the method.
        variant: what sets the group apart from others of its method; may be empty.
        records: the runs by seed; of repetitions the newest finished one.
        repetitions: the other repetitions.
        has_other_data: ``True``: a group of the same settings has other data.
    """

    experiment: str
    method: str
    variant: str
    records: tuple[RunRecord, ...]
    repetitions: tuple[RunRecord, ...] = ()
    has_other_data: bool = False

    @property
    def label(self) -> str:
        """The method's name, and the settings and data that set the group apart."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def listed(self) -> tuple[RunRecord, ...]:
        """The runs and then their repetitions."""
        return (*self.records, *self.repetitions)

    @property
    def complete(self) -> tuple[RunRecord, ...]:
        """The runs that finished all their tasks."""
        return tuple(record for record in self.records if record.complete)

    def over_runs(self, value: Callable[[RunRecord], float | None]) -> Spread | None:
        """Summarise a number over the complete runs."""
        return spread(value(record) for record in self.complete)


def group_records(records: Sequence[RunRecord]) -> list[Group]:
    """Group runs by experiment, method, settings and data; seeds and execution aside.

    Groups come by experiment, then in the registry's order of methods. Where one experiment holds
    a method more than once, the groups are labelled with the settings that differ; where runs of
    the same settings have other protocols, also with the data.
    """
    data = _names_of_data(records)
    members: dict[tuple[str, str, str, str], list[RunRecord]] = {}
    for record in records:
        settings = json.dumps(_deciding(record), sort_keys=True)
        key = (record.info.experiment, record.method, settings, data.get(_stream(record), ""))
        members.setdefault(key, []).append(record)
    known = list(METHODS)
    order = sorted(
        members,
        key=lambda key: (key[0], known.index(key[1]) if key[1] in known else len(known), key[1]),
    )
    groups = []
    for key in order:
        experiment, method, settings, images = key
        beside = [json.loads(k[2]) for k in members if k[:2] == (experiment, method)]
        difference = _difference(json.loads(settings), beside)
        variant = ", ".join(filter(None, (difference, images)))
        counted, repetitions = _without_repetitions(members[key])
        groups.append(Group(experiment, method, variant, counted, repetitions, bool(images)))
    return groups


def _without_repetitions(
    records: Sequence[RunRecord],
) -> tuple[tuple[RunRecord, ...], tuple[RunRecord, ...]]:
    """Return each run once, by seed, and its repetitions: runs with the same fingerprint."""
    counted: dict[object, RunRecord] = {}
    in_order = sorted(
        records, key=lambda r: (r.complete, as_time(r.info.finished or r.info.started), r.directory)
    )
    for record in in_order:  # The newest finished run comes last, and stays.
        fingerprint = record.info.fingerprints.get("run")
        counted[(fingerprint, record.seed) if fingerprint else record.directory] = record

    def by_seed(found: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
        return tuple(sorted(found, key=lambda r: (-1 if r.seed is None else r.seed, r.directory)))

    kept = {id(record) for record in counted.values()}
    return by_seed(counted.values()), by_seed(r for r in records if id(r) not in kept)


def _stream(record: RunRecord) -> tuple[str, str, str | None]:
    """Return the experiment, the settings that decide a protocol, and the protocol."""
    kinds = ("data.", "scenario.", "memory.", "backbone.")
    settings = {k: value for k, value in _deciding(record).items() if k.startswith(kinds)}
    protocol = record.info.fingerprints.get("protocol")
    return record.info.experiment, json.dumps(settings, sort_keys=True), protocol


def _names_of_data(
    records: Sequence[RunRecord],
) -> Mapping[tuple[str, str, str | None], str]:
    """Name the data of each stream whose settings have several protocols.

    The settings do not say all about the data: images may be given from Python, or have changed.
    """
    streams: dict[tuple[str, str], dict[str | None, RunRecord]] = {}
    for record in records:
        experiment, settings, protocol = _stream(record)
        streams.setdefault((experiment, settings), {}).setdefault(protocol, record)
    names = {}
    for (experiment, settings), found in streams.items():
        if len(found.keys() - {None}) < 2:
            continue
        images = {p: _images(record) for p, record in found.items()}
        texts = list(images.values())
        for protocol, text in images.items():
            # Images that are told apart by no number are told apart by the fingerprint.
            if texts.count(text) > 1:
                text = f"{text}, protocol {(protocol or 'unknown')[:8]}"
            names[experiment, settings, protocol] = f"data: {text}"
    return names


def _images(record: RunRecord) -> str:
    dataset = record.info.dataset
    return f"{_short(dataset.name)}, {dataset.num_train} images" if dataset else "unknown"


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
    named = differing if len(differing) <= 4 else _telling(settings, beside, differing)
    parts = [f"{key.removeprefix('method.')}={_short(settings.get(key))}" for key in named]
    return ", ".join([*parts, "…"] if len(named) < len(differing) else parts)


def _telling(
    settings: Mapping[str, Any], beside: Sequence[Mapping[str, Any]], differing: Sequence[str]
) -> list[str]:
    """Choose few keys that tell settings from all others: next the one that most others lack."""
    left, chosen = list(beside), list[str]()
    while left := [o for o in left if any(o.get(k) != settings.get(k) for k in differing)]:
        best = max(differing, key=lambda key: sum(o.get(key) != settings.get(key) for o in left))
        left = [other for other in left if other.get(best) == settings.get(best)]
        chosen.append(best)
    return chosen


def _short(value: object) -> str:
    text = (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
    return text if len(text) <= 24 else f"{text[:23]}…"
