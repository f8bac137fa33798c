"""Packages with methods of their own, put where Python finds them without an installer."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "outside_method"
SOURCE = Path(__file__).parents[2] / "src"


def installed(site: Path, name: str, methods: Mapping[str, str], code: Mapping[str, str]) -> Path:
    """Write a package's metadata, the entry points of its methods, and its files into ``site``."""
    info = site / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = [f"{method} = {place}\n" for method, place in methods.items()]
    (info / "entry_points.txt").write_text("[grace.methods]\n" + "".join(lines))
    for path, text in code.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    return site


def example(site: Path) -> Path:
    """Install the example package, as its own pyproject.toml has it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "src" / "grace_aligned", site / "grace_aligned")
    return installed(site, project["name"], project["entry-points"]["grace.methods"], {})


def python(
    *arguments: str | Path, paths: tuple[Path, ...], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these packages on its path, warnings being errors."""
    inherited = {name: value for name, value in os.environ.items() if name != "COV_CORE_SOURCE"}
    places = {"PYTHONPATH": os.pathsep.join(map(str, (*paths, SOURCE)))}
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=inherited | places | environment
    )
