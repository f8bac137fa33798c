"""Group runs that differ only in their seeds, and label the groups by what sets them apart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from grace.base.words import counted
from grace.runs import RunRecord
from grace.runs.model import as_time
from grace.settings.flat import flatten
from grace.settings.registry import METHODS

_ASIDE = ("seeds.", "engine.", "name", "description", "data.root", "data.streaming")
"""Settings that decide no result; ``engine.precision`` is one that does."""
_MOST_NAMED = 4


@final
@dataclass(frozen=True)
class Group:
    """Runs of one experiment, method, settings and data, each once.

    Args:
        experiment: name of the experiment.
        method: name of the method.
        variant: what sets the group apart from others of its method; may be empty.
        records: the runs by seed; of repetitions the newest finished one.
        notes: what a reader must know.
    """

    experiment: str
    method: str
    variant: str
    records: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The method's name, and the settings and data that set the group apart."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def complete(self) -> tuple[RunRecord, ...]:
        """The runs that finished all their tasks."""
        return tuple(record for record in self.records if record.complete)


def group_records(records: Sequence[RunRecord]) -> list[Group]:
    """Group runs by experiment, method, settings and protocol; seeds and execution aside.

    Groups come by experiment, then in the registry's order of methods. Where an experiment has a
    method more than once, a group is labelled with the settings that differ, and with its images.
    """
    members: dict[tuple[str, str, str, str], list[RunRecord]] = {}
    for record in records:
        settings = json.dumps(_deciding(record), sort_keys=True)
        protocol = record.info.fingerprints.get("protocol", "")
        key = (record.info.experiment, record.method, settings, protocol)
        members.setdefault(key, []).append(record)
    places = {method: place for place, method in enumerate(METHODS)}
    order = sorted(members, key=lambda k: (k[0], places.get(k[1], len(places)), k[1]))
    groups = []
    for key in order:
        beside = [json.loads(k[2]) for k in order if k[:2] == key[:2]]
        parts = [_difference(json.loads(key[2]), beside)]
        notes = []
        if sum(k[:3] == key[:3] for k in order) > 1:
            parts.append(f"data: {_images(members[key][0])}, protocol {key[3][:8] or 'unknown'}")
            notes.append(f"{key[0]}: rows of other data have other protocols; do not compare them")
        variant = ", ".join(filter(None, parts))
        groups.append(_group(key[0], key[1], variant, members[key], notes))
    return groups


def _group(
    experiment: str, method: str, variant: str, records: Sequence[RunRecord], notes: list[str]
) -> Group:
    """Make a group of the newest finished repetition of each run."""
    kept: dict[object, RunRecord] = {}
    ended = [(r.complete, as_time(r.info.finished or r.info.started), r.directory) for r in records]
    for _, record in sorted(zip(ended, records, strict=True), key=lambda pair: pair[0]):
        fingerprint = record.info.fingerprints.get("run")
        kept[(fingerprint, record.seed) if fingerprint else record.directory] = record
    counts = sorted(kept.values(), key=lambda r: (-1 if r.seed is None else r.seed, r.directory))
    group = Group(experiment, method, variant, tuple(counts))
    place, left = f"{experiment}/{group.label}", len(counts) - len(group.complete)
    if left:
        notes.append(f"{place}: {left} of {len(counts)} runs unfinished and left out")
    if more := len(records) - len(counts):
        notes.append(
            f"{place}: {counted(more, 'repetition')} of the same run left out (only the newest "
            "finished one counts)"
        )
    return Group(experiment, method, variant, tuple(counts), tuple(notes))


def _images(record: RunRecord) -> str:
    dataset = record.info.dataset
    return f"{_short(dataset.name)}, {dataset.num_train} images" if dataset else "unknown"


def _deciding(record: RunRecord) -> dict[str, Any]:
    """Return the settings that decide a result, except the seeds, by dotted path."""
    flat = flatten(record.info.config)
    return {k: v for k, v in flat.items() if not k.startswith(_ASIDE) or k == "engine.precision"}


def _difference(settings: Mapping[str, Any], beside: Sequence[Mapping[str, Any]]) -> str:
    """Name the settings that differ from those of other groups; few that tell them apart."""
    keys = dict.fromkeys(key for other in beside for key in other)
    differing = [key for key in keys if any(o.get(key) != settings.get(key) for o in beside)]
    left, named = list(beside), list[str]()
    if len(differing) <= _MOST_NAMED:
        left, named = [], differing
    while left := [o for o in left if any(o.get(k) != settings.get(k) for k in differing)]:
        best = max(differing, key=lambda key: sum(o.get(key) != settings.get(key) for o in left))
        left = [other for other in left if other.get(best) == settings.get(best)]
        named.append(best)
    parts = [f"{key.removeprefix('method.')}={_short(settings.get(key))}" for key in named]
    return ", ".join([*parts, "…"] if len(named) < len(differing) else parts)


def _short(value: object) -> str:
    text = (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
    return text if len(text) <= 24 else f"{text[:23]}…"
