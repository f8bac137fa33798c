"""The output of ``grace history``: two lines per update within 80 columns, CSV or JSON.

The audit trail follows the table: forgotten classes and those learnt again, removed versions,
rollbacks. In JSON it stands between the updates.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from grace.base.words import in_bytes, in_count, in_percent, in_seconds, printable, spreadsheet
from grace.cli.class_lines import TEST, class_facts, gate_facts, losses
from grace.cli.columns import aligned
from grace.learner.changes import Change
from grace.learner.ledger import LedgerEntry, as_row
from grace.learner.trail import Event, trail
from grace.nn.threshold import Threshold


def as_lines(entries: Sequence[LedgerEntry], initial: Threshold | None) -> list[str]:
    """Return a ledger as lines: two of headings, two for each entry, and the marks explained."""
    above = ["ver.", "classes", "verdict", "satur.", "bones", "params", "old %", "new %", "date"]
    below = ["from", "in all", "points", "thresh.", "size", "after", "after", "", "time"]
    rows = [above, below]
    for entry in entries:
        rows += [_first_line(entry), _second_line(entry)]
    if initial is not None:
        would = [entry.would or "–" for entry in entries]
        column = [f"at {initial.initial:g}", "", *(text for w in would for text in (w, ""))]
        rows = [[*row, cell] for row, cell in zip(rows, column, strict=True)]
    marks = [
        "old %, new % and the cost of compression: on held-out images",
        *(["* in use"] if any(entry.is_current for entry in entries) else []),
        *(["× rejected"] if any(entry.status == "rejected" for entry in entries) else []),
        *[
            f"{entry.version}: {printable('; '.join(map(str, entry.changed)))}"
            for entry in entries
            if entry.changed
        ],
        *(["( ) removed"] if any(entry.is_removed for entry in entries) else []),
        *(["– no version of its own is kept"] if any(e.version is None for e in entries) else []),
    ]
    verdicts = {entry.update.outcome.verdict for entry in entries}
    if "compress (budget)" in verdicts:
        marks.append("budget: compressed, since the ceiling left no room to grow")
    return [*aligned(rows, right="<><>>>>><<", gap=1), *_losses(entries), "", *marks]


def as_class_lines(entries: Sequence[LedgerEntry], most: int = 8) -> list[str]:
    """Return a table of every class's accuracy after each of the last updates, and its interval.

    Args:
        entries: the ledger.
        most: number of updates to show.
    """
    shown = [entry for entry in entries if entry.update.accuracy.classes][-most:]
    if not shown:
        return ["no update measured single classes"]
    names = max((entry.class_names for entry in shown), key=len)
    found = [{own.index: own for own in entry.update.accuracy.classes} for entry in shown]
    rows = [["class", *(_version(entry) for entry in shown), "held out"]]
    for index, name in enumerate(names):
        results = [own.get(index) for own in found]
        counts = [own.num for own in results if own is not None]
        if counts:
            cells = [f"{100 * own.after / own.num:.1f}" if own else "–" for own in results]
            rows.append([printable(name), *cells, str(counts[-1])])
            ends = [[f"{100 * end:.0f}" for end in own.interval] if own else [] for own in results]
            rows.append(["", *map("–".join, ends), ""])
    marks = "accuracy in % on held-out images after each version, its 95 % interval; × rejected"
    return [*aligned(rows, right="<" + ">" * (len(shown) + 1)), *_losses(shown), "", marks]


def _losses(entries: Sequence[LedgerEntry]) -> list[str]:
    """Name the classes that each update lost accuracy on; empty: there are none."""
    texts = [(entry, losses(entry.update.accuracy, entry.class_names)) for entry in entries]
    rows = [[f"  {_version(entry)}", text] for entry, text in texts if text]
    return ["", f"classes that lost accuracy ({TEST}), by version", *aligned(rows)] if rows else []


def _version(entry: LedgerEntry) -> str:
    return _number(entry) + (" ×" if entry.status == "rejected" else "")


def _number(entry: LedgerEntry) -> str:
    if entry.version is None:
        return "–"
    return f"({entry.version})" if entry.is_removed else str(entry.version)


def as_csv(entries: Sequence[LedgerEntry], initial: Threshold | None) -> str:
    """Return a ledger as CSV: accuracies as shares, not rounded."""
    return _csv(_rows(entries, initial))


def as_class_csv(entries: Sequence[LedgerEntry]) -> str:
    """Return a row for each class that an update measured as CSV: shares, not rounded."""
    rows = []
    for entry in entries:
        for facts in [] if entry.is_set else class_facts(entry.update.accuracy, entry.class_names):
            row: dict[str, Any] = {"version": entry.version, "status": entry.status}
            for key, value in facts.items():
                if key.endswith("_interval"):
                    row[f"{key}_low"], row[f"{key}_high"] = value or (None, None)
                else:
                    row[key] = value
            rows.append(row)
    return _csv(rows)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    writer.writerows(map(_csv_cell, row.values()) for row in rows)
    return out.getvalue()


def _csv_cell(value: object) -> object:
    """Return a cell: booleans as in JSON, texts of a stranger as no formulas, None as no text."""
    if isinstance(value, bool):
        return str(value).lower()
    return spreadsheet(value) if isinstance(value, str) else value


def change_lines(events: Sequence[Event]) -> list[str]:
    """Return a line for every change that is no plain update, below a heading; or no lines.

    These are changes other than updates, and updates that revive a forgotten class.
    """
    shown = [
        event
        for event in events
        if event.entry is None
        or (event.entry.update.revived_class_names and not event.entry.is_set)
    ]
    return ["", "changes other than new classes and images"] * bool(shown) + [
        f"  {event.date[:16].replace('T', ' ')}  {printable(event.words)}" for event in shown
    ]


def as_json(
    entries: Sequence[LedgerEntry], changes: Sequence[Change], initial: Threshold | None
) -> list[dict[str, Any]]:
    """Return the audit trail as JSON values, in the order of time.

    Entries of the kinds ``update`` and ``set``, which are versions, have the columns of the CSV and
    the class names; the others are the changes as they are noted.

    Args:
        entries: the versions.
        changes: what changed beside new versions.
        initial: another threshold to judge by; ``None``: the learner's own.
    """
    rows = iter(_rows(entries, initial))
    return [_event(event, rows) for event in trail(entries, changes)]


def _event(event: Event, rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    if event.change is not None:
        return event.change.model_dump(mode="json")
    assert event.entry is not None
    update = event.entry.update
    return {
        "kind": "set" if event.entry.is_set else "update",
        **next(rows),
        "new_class_names": list(update.new_class_names),
        "revived_class_names": list(update.revived_class_names),
        "classes": class_facts(update.accuracy, event.entry.class_names),
        "gate": [] if event.entry.is_set else gate_facts(update.rulings, event.entry.class_names),
    }


def note_on(initial: Threshold) -> list[str]:
    """Explain how far the verdicts of another threshold can be trusted."""
    return wrap(
        f"at {initial.initial:g}: what this threshold, with decay {initial.decay:g}, would have "
        "decided on the saturations as they were. From the first verdict that differs on, the "
        "network and so the later saturations would have been others.",
        80,
    )


def _rows(entries: Sequence[LedgerEntry], initial: Threshold | None) -> list[dict[str, Any]]:
    rows = [as_row(entry) for entry in entries]
    if initial is not None:
        rows = [
            row | {"what_if_verdict": entry.would} for row, entry in zip(rows, entries, strict=True)
        ]
    return rows


def _first_line(entry: LedgerEntry) -> list[str]:
    update, outcome = entry.update, entry.update.outcome
    mark = " *" if entry.is_current else " ×" if entry.status == "rejected" else ""
    before, after = update.num_backbones
    if entry.is_set:
        return [f"{entry.version}{mark}", "", "set", "", str(after), "", "", "", entry.date[:10]]
    return [
        f"{_number(entry)}{mark}",
        f"+{len(update.new_class_names)}",
        "budget" if outcome.verdict == "compress (budget)" else outcome.verdict,
        _fraction(outcome.saturation),
        f"{before} → {after}",
        in_count(update.num_parameters[0]) if update.num_parameters[0] else "–",
        _share(update.accuracy.old_before),
        _share(update.accuracy.new_after),
        update.date[:10],
    ]


def _second_line(entry: LedgerEntry) -> list[str]:
    update, cost = entry.update, entry.update.accuracy.compression_cost
    if entry.is_set:
        size, parent = in_bytes(entry.num_bytes or 0), f"← {entry.parent}"
        return [parent, str(entry.num_classes), "", "", size, "", "", "", ""]
    return [
        "" if entry.parent is None else f"← {entry.parent}",
        str(entry.num_classes),
        "" if cost is None else f"cost {cost:.1f}",
        _fraction(update.outcome.threshold),
        "–" if entry.num_bytes is None else in_bytes(entry.num_bytes),
        in_count(update.num_parameters[1]),
        _share(update.accuracy.old_after),
        "",
        in_seconds(update.seconds),
    ]


def _fraction(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return in_percent(None if value is None else 100 * value, 1)
