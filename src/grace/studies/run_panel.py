"""The report's panel of one run: its tasks, settings and provenance."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from grace.base.words import element, escape, in_bytes, in_percent, in_seconds
from grace.runs import RunRecord, TaskRecord
from grace.settings.describe import SettingRow, describe_settings
from grace.settings.experiment import ExperimentSettings
from grace.settings.flat import flatten
from grace.studies.tables import has_task_aware


def run_panel(record: RunRecord, number: int, charts: str) -> str:
    """Return the panel of one run as HTML; all but the first are hidden until they are selected.

    Args:
        record: record of the run.
        number: position of the run in the report, the value of its option.
        charts: the run's charts, as HTML.
    """
    parts = [
        *_warnings(record),
        element("div", charts, class_="grid"),
        _card("Tasks", element("div", _tasks(record), class_="scroll")),
        _fold("Settings", _settings(record)),
        _fold("Where it comes from", _provenance(record)),
    ]
    if number == 0:
        return element("div", *parts, class_="run", data_run="0")
    return element("div", *parts, class_="run", data_run=str(number), hidden="")


def _card(title: str, content: str) -> str:
    return element("div", element("h3", title), content, class_="card")


def _fold(title: str, content: str) -> str:
    inner = element("details", element("summary", title), content)
    return element("div", inner, class_="card")


def _warnings(record: RunRecord) -> list[str]:
    lines = []
    if not record.complete:
        done, total = len(record.tasks), len(record.info.task_sizes)
        why = f": {record.info.error}" if record.info.error else ""
        lines.append(f"This run is {record.info.status} after {done} of {total} tasks{why}.")
    if record.torn:
        lines.append("The last line of its record was cut off and is left out.")
    lines += record.info.notes
    return [element("p", escape(line), class_="note") for line in lines]


def _tasks(record: RunRecord) -> str:
    aware = ["Task-aware (%)"] if has_task_aware(record) else []
    titles = [
        "Task", "New classes", "All (%)", "Old (%)", "New (%)", "NME (%)", *aware, "Saturation",
        "Threshold", "Verdict", "Merge weight", "Backbones", "Parameters", "Weights", "Exemplars",
        "Time",
    ]  # fmt: skip
    texts = ("New classes", "Verdict")
    head = [
        element("th", escape(title), class_="text" if title in texts else "") for title in titles
    ]
    rows = [element("tr", *_task_cells(task, task_aware=bool(aware))) for task in record.tasks]
    return element("table", element("thead", element("tr", *head)), element("tbody", *rows))


def _task_cells(task: TaskRecord, *, task_aware: bool) -> list[str]:
    primary, nearest = task.accuracy, task.classifiers.get("nearest_mean")
    aware = primary.task_aware if primary else None
    names = ", ".join(task.class_names_new[:8]) + (", …" if len(task.class_names_new) > 8 else "")
    numbers = [
        in_percent(primary.all if primary else None),
        in_percent(primary.old if primary else None),
        in_percent(primary.new if primary else None),
        in_percent(nearest.all if nearest else None),
        *([in_percent(aware.all if aware else None)] if task_aware else []),
        _decimal(task.saturation, 3),
        _decimal(task.threshold, 3),
    ]
    after = [
        _decimal(task.merge_weight, 4),
        str(task.backbones),
        f"{task.parameters.total:,}",
        in_bytes(task.bytes.weights),
        f"{task.num_exemplars} ({in_bytes(task.bytes.exemplars)})",
        in_seconds(task.seconds.total),
    ]
    return [
        element("td", str(task.task)),
        element("td", escape(names), class_="text names"),
        *(element("td", escape(number)) for number in numbers),
        element("td", escape(task.verdict or "–"), class_="text verdict"),
        *(element("td", escape(number)) for number in after),
    ]


def _decimal(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _settings(record: RunRecord) -> str:
    head = element(
        "tr", *(element("th", title, class_="text") for title in ("Setting", "Value", "Meaning"))
    )
    rows = [
        element(
            "tr",
            element("td", element("code", escape(row.path)), class_="text"),
            element("td", escape(_value(row.value)), class_="text"),
            element("td", escape(row.meaning), class_="text wide"),
            class_="" if row.is_default else "changed",
        )
        for row in _setting_rows(record)
    ]
    table = element("table", element("thead", head), element("tbody", *rows))
    caption = "Settings that differ from their defaults are bold."
    return element("p", caption, class_="caption") + element("div", table, class_="scroll")


def _setting_rows(record: RunRecord) -> Sequence[SettingRow]:
    try:
        return describe_settings(ExperimentSettings.model_validate(record.info.config))
    except ValidationError:
        # Another version's settings: shown as they are, without meanings.
        flat = flatten(record.info.config)
        return [SettingRow(path, value, True, "") for path, value in flat.items()]


def _value(value: Any) -> str:  # noqa: ANN401 - settings hold anything
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(str(part) for part in value) or "none"
    return str(value)


def _provenance(record: RunRecord) -> str:
    info = record.info
    data = info.dataset
    facts: dict[str, object] = {
        "Directory": record.directory,
        "Status": info.status,
        "Started": info.started,
        "Finished": info.finished or "–",
        "Images": f"{data.num_train:,} training, {data.num_test:,} test, "
        f"{data.shape[1]}×{data.shape[2]} pixels, {data.shape[0]} channels"
        if data
        else "–",
        "Versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
        "Commit": info.commit or "–",
        "Hardware": ", ".join(
            f"{name} {value}" for name, value in info.hardware.items() if value is not None
        ),
        "Protocol fingerprint": info.fingerprints.get("protocol", "–"),
        "Run fingerprint": info.fingerprints.get("run", "–"),
    }
    return element(
        "dl",
        *(element("dt", name) + element("dd", escape(value)) for name, value in facts.items()),
    )
