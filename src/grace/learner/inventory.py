"""What ``grace info`` shows: the contents of a home, from its documents alone. Torch-free."""

from typing import Any

from grace.base.lock import holder
from grace.learner.document import Document
from grace.learner.store import ModelStore, bytes_of
from grace.settings.load import describe_settings


def facts(home: ModelStore) -> dict[str, Any]:
    """Return what a home holds, by names for programs.

    Raises:
        DamagedError: if the document of the version in use is damaged.
    """
    survey, unfinished = home.survey(), home.log.unfinished()
    source = survey.in_use or home.creation
    # The lock is only tried beside an update: asking never gets in the way of a start.
    running = holder(home.path / "lock") if home.pending() else None
    return {
        "path": home.path,
        "versions": [made.number for made in survey.documents],
        "rejected_versions": [m.number for m in survey.documents if m.status == "rejected"],
        "damaged_versions": sorted(survey.damaged),
        "interrupted_update": home.pending() is not None and running is None,
        "running_update": running,
        "interrupted_change": unfinished.kind if unfinished else None,
        "changes": home.history(),
        "num_bytes_of_all_versions": bytes_of(survey.documents),
        "method": source.settings.method.name,
        "backbone": source.settings.backbone.name,
        "shape": source.shape,
        "mean": source.mean,
        "std": source.std,
        "settings": {
            row.path: row.value
            for row in describe_settings(source.settings)
            if not row.is_default and not row.path.startswith("scenario.")
        },
        "in_use": survey.in_use and _version(survey.in_use),
    }


def _version(document: Document) -> dict[str, Any]:
    last, max_mb = document.history[-1], document.settings.memory.max_mb
    outcomes = [update.outcome for update in document.history]
    assessed = next((o for o in reversed(outcomes) if o.saturation is not None), None)
    return {
        "version": document.number,
        "grace_version": document.grace_version,
        "created": document.history[0].date,
        "updated": document.created,
        "num_updates": len(document.history),
        "num_backbones": last.num_backbones[1],
        "num_parameters": last.num_parameters[1],
        "saturation": assessed and assessed.saturation,
        "threshold": assessed and assessed.threshold,
        "temperature": last.temperature,
        "calibration_error": last.calibration_error
        and dict(zip(("before", "after"), last.calibration_error, strict=True)),
        "num_bytes": {
            **document.bytes_by_kind,
            "total": document.num_bytes,
            "ceiling": None if max_mb is None else int(max_mb * 1_000_000),
        },
        "classes": classes(document),
    }


def classes(document: Document) -> list[dict[str, Any]]:
    """Return each class of a version with the images that it keeps."""
    exemplars, held_out = document.exemplars, document.validation
    return [
        {
            "index": index,
            "name": name,
            "forgotten": index in document.forgotten,
            "num_exemplars": exemplars[index].num if index in exemplars else 0,
            "num_held_out": held_out[index].num if index in held_out else 0,
        }
        for index, name in enumerate(document.class_names)
    ]
