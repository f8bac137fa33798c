"""The origin of a record: versions, hardware, commit, fingerprints. Torch-free."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import grace
from grace.base.machine import processor_name
from grace.settings.experiment import ExperimentSettings


def collect_versions() -> dict[str, str]:
    """Return the versions of grace, Python, torch, numpy and torchvision."""
    versions = {"grace": grace.__version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "torchvision"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


def collect_hardware(
    device: str, threads: int, gpu: str | None = None, processes: int = 1
) -> dict[str, Any]:
    """Describe the machine.

    Args:
        device: "cpu" or "cuda".
        threads: number of torch's CPU threads in each process.
        gpu: the GPU's name; ``None`` on the CPU.
        processes: number of processes that worked together.
    """
    return {
        "platform": platform.platform(),
        "cpu": processor_name(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "device": device,
        "gpu": gpu,
        "processes": processes,
    }


def commit() -> str | None:
    """Return the git commit of this source, "-dirty" with local changes; ``None``: not from git."""
    package = Path(grace.__file__).parent
    # Only a tracked file is of this commit: grace may be installed inside another checkout.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = _git(package, "rev-parse", "HEAD")
    dirty = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
    return f"{head}-dirty" if head and dirty else head


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def fingerprints(
    settings: ExperimentSettings, data_digest: str, versions: Mapping[str, str]
) -> dict[str, str]:
    """Return the three SHA-256 fingerprints of a run, over canonical JSON.

    *protocol* covers the data files, their selection and split, base and increment, augmentation,
    memory rule and backbone (pre-trained weights by their SHA-256, not their path): runs with the
    same one can stand in one table. *run* also covers the method with its recipes, the precision,
    the class order, the seeds, the versions and the measures it takes: runs with the same one
    repeat each other.
    *first_task* covers what decides the first task of a method that trains one new network there:
    data, held-out images, base, backbone, precision, class order, seeds, versions, the recipe
    ``method.base`` and label smoothing; runs with the same one can share that network. Other
    settings of ``engine`` and the place of files are in none of them.

    Args:
        settings: the resolved settings.
        data_digest: hex digest of the data files.
        versions: versions of grace and its libraries, by name.

    Raises:
        GraceError: if pre-trained weights cannot be read.
    """
    config = settings.model_dump(mode="json")
    protocol = {
        "data_digest": data_digest,
        **_protocol(settings, config),
        "backbone": _backbone(settings, config["backbone"]),
    }
    run = {"protocol": protocol, **_beside_protocol(settings, config), "versions": dict(versions)}
    first_task = {
        **{key: protocol[key] for key in ("data_digest", "data", "base", "backbone")},
        "validation": config["memory"]["validation"],
        "recipe": config["method"].get("base"),
        "label_smoothing": config["method"].get("label_smoothing", 0.0),
        **{key: run[key] for key in ("precision", "class_order", "seeds", "versions")},
    }
    return {"protocol": _digest(protocol), "run": _digest(run), "first_task": _digest(first_task)}


def settings_fingerprint(settings: ExperimentSettings) -> str:
    """Return the SHA-256 over the settings that the fingerprint *run* covers.

    Two runs with the same one are the same run if their data and versions are too. It reads no
    image and needs no torch; pre-trained weights count by their path.
    """
    config = settings.model_dump(mode="json")
    protocol = {**_protocol(settings, config), "backbone": config["backbone"]}
    return _digest({"protocol": protocol, **_beside_protocol(settings, config)})


def _protocol(settings: ExperimentSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    carried_out = ("root", "streaming", "max_pixels", "skip_unreadable", "skip_duplicates")
    return {
        "data": {key: value for key, value in config["data"].items() if key not in carried_out},
        "base": settings.scenario.base or settings.scenario.increment,
        "increment": settings.scenario.increment,
        "memory": config["memory"],
    }


def _beside_protocol(settings: ExperimentSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a run beside its protocol."""
    measured = (
        {"measures": settings.probe.model_dump(mode="json")} if settings.probe.measures else {}
    )
    return {
        "method": config["method"],
        "precision": config["engine"]["precision"],
        "class_order": config["scenario"]["class_order"],
        "seeds": config["seeds"],
        **measured,
    }


def _backbone(settings: ExperimentSettings, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the path of pre-trained weights by their SHA-256."""
    if settings.backbone.weights == "none":
        return config
    # Imported here because it imports torch.
    from grace.nn.weights import digest_of_weights

    return {**config, "weights": digest_of_weights(settings.backbone)}


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
