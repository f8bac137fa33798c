"""The text summary of a comparison: machine, cost and results, as Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from grace.base.words import code_block, in_percent, in_seconds, markdown
from grace.runs import RunRecord
from grace.runs.model import as_time
from grace.studies.groups import Group, group_records, spread
from grace.studies.tables import comparison_table, has_task_aware, to_markdown


def summarise(records: Sequence[RunRecord], command: str = "", at_once: int | None = None) -> str:
    """Return provenance, cost, the comparison table and accuracy per task, as Markdown.

    Args:
        records: records of finished runs, at least one.
        command: command that made them; empty: not shown.
        at_once: number of runs at a time; ``None``: not shown.
    """
    infos = [record.info for record in records]
    names = sorted({info.experiment for info in infos})
    groups = group_records(records)
    parts = [
        f"# Comparison: {markdown(', '.join(names))}",
        *sorted({markdown(info.description) for info in infos if info.description}),
        *([code_block(command, "bash")] if command else []),
        provenance(records),
        cost(records, at_once),
        *map(markdown, notes_of(records)),
        "## Results",
        "Mean ± standard deviation over the runs of a method.",
        to_markdown(comparison_table(records)).strip(),
        "## Accuracy after each task",
        "On all classes seen, in percent; mean over the runs of a method.",
        _per_task(groups),
        *_task_aware(groups),
    ]
    return "\n\n".join(parts) + "\n"


def shared_seconds(records: Sequence[RunRecord]) -> float:
    """Return the seconds of work that runs took over from another run (shared first task)."""
    return sum(
        phase.earlier
        for record in records
        for task in record.tasks
        for phase in task.phases
        if phase.is_shared
    )


UNLIKE_MACHINES = (
    "the runs were made on unlike machines, which round differently: with equal seeds they differ "
    "as much as with other seeds"
)


def notes_of(records: Sequence[RunRecord]) -> list[str]:
    """List what a reader must know: notes of the runs, each once, and if machines differ."""
    notes = dict.fromkeys(note for record in records for note in record.info.notes)
    names = ("cpu", "gpu", "threads", "processes")
    if len({tuple(record.info.hardware.get(name) for name in names) for record in records}) > 1:
        notes[UNLIKE_MACHINES] = None
    return list(notes)


def provenance(records: Sequence[RunRecord]) -> str:
    """List date, commit, versions and machine of the runs; different values are all named."""
    infos = [record.info for record in records]
    days = sorted({info.started[:10] for info in infos})
    facts = {
        "date": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
        "commit": _listed(info.commit or "unknown" for info in infos),
        "torch": _listed(str(info.versions.get("torch")) for info in infos),
        "python": _listed(str(info.versions.get("python")) for info in infos),
        "hardware": _listed(_hardware(record) for record in records),
        **_backbones(records),
    }
    return "\n".join(f"- {key}: {markdown(value)}" for key, value in facts.items())


def _backbones(records: Sequence[RunRecord]) -> Mapping[str, str]:
    """List the backbones with their methods, if the runs have more than one."""
    methods: dict[str, dict[str, None]] = {}
    for record in records:
        methods.setdefault(record.info.backbone, {})[record.method] = None
    if len(methods) == 1:
        return {}
    return {"backbones": "; ".join(f"{name} ({', '.join(who)})" for name, who in methods.items())}


def _hardware(record: RunRecord) -> str:
    known = record.info.hardware
    machine = known.get("gpu") or known.get("cpu") or "unknown"
    threads = known.get("threads")
    in_words = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{machine}, {known.get('cores')} cores, {in_words} a run"


def _listed(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def cost(records: Sequence[RunRecord], at_once: int | None) -> str:
    """Say how much time the runs took, as one sentence.

    Args:
        records: records of finished runs.
        at_once: number of runs at a time; ``None``: not shown.
    """
    total, shared = sum(record.seconds for record in records), shared_seconds(records)
    starts = [as_time(record.info.started) for record in records]
    ends = [as_time(record.info.finished) for record in records if record.info.finished]
    text = f"{len(records)} runs, {in_seconds(total)} of work"
    if at_once is not None:
        text += f", {at_once} at a time"
    if ends:
        # A clock that was set back would make it negative.
        elapsed = max(0.0, (max(ends) - min(starts)).total_seconds())
        text += f"; {in_seconds(elapsed)} from the first one's start to the last one's end"
    if shared:
        text += (
            f". Sharing the first task's network spared {in_seconds(shared)} of that work "
            f"({100 * shared / max(total, shared):.0f} %)"
        )
    return text + "."


def _per_task(groups: Sequence[Group]) -> str:
    rows = _rows_per_task(groups, RunRecord.accuracies)
    for row, group in zip(rows, groups, strict=True):
        last = [run.tasks[-1].accuracy for run in group.complete]
        row.append(_mean([found.old if found else None for found in last]))
        row.append(_mean([found.new if found else None for found in last]))
    return _table_per_task(rows, ["Old", "New"])


def _task_aware(groups: Sequence[Group]) -> Sequence[str]:
    if not any(has_task_aware(record) for group in groups for record in group.records):
        return []
    return [
        "## Task-aware accuracy after each task",
        "On all classes seen, in percent, if each image's task is given; mean over the runs of a "
        "method. This is an easier problem than the one above: do not compare the two.",
        _table_per_task(_rows_per_task(groups, RunRecord.task_aware_accuracies), []),
    ]


def _rows_per_task(
    groups: Sequence[Group], accuracies: Callable[[RunRecord], Sequence[float | None]]
) -> list[list[str]]:
    most = max(len(record.tasks) for group in groups for record in group.records)
    rows = []
    for group in groups:
        runs = [accuracies(run) for run in group.complete]
        means = [
            _mean([run[place] if place < len(run) else None for run in runs])
            for place in range(most)
        ]
        rows.append([markdown(group.label), *means])
    return rows


def _table_per_task(rows: Sequence[Sequence[str]], more: Sequence[str]) -> str:
    tasks = range(1, len(rows[0]) - len(more))
    titles = ["Method", *(f"Task {number}" for number in tasks), *more]
    rule = ["---", *["---:"] * (len(titles) - 1)]
    return "\n".join(_line(cells) for cells in [titles, rule, *rows])


def _mean(values: Sequence[float | None]) -> str:
    found = spread(values)
    return in_percent(found.mean if found else None, 1)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
