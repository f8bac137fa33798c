"""Write the archives of this folder: learners, unfinished work and a run, as grace kept them.

This ran on commit e32f248, grace 0.1.0, and is kept for the record. It reaches into that commit's
insides to kill work in its midst, so it need not run on a later one. To keep files of a later
format too, write further archives beside these; these stay::

    PYTHONPATH=src:tests/earlier python tests/earlier/write_earlier_files.py
"""

import io
import itertools
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import grace.runs.writing
from earlier_files import (
    NAMES,
    NETWORKS,
    UNFINISHED,
    VARIANTS,
    WHOLE_NETWORKS,
    WRITTEN,
    loaded,
    said,
    taught,
    told,
    use_tiny_backbones,
)
from grace.engine.phase import Phase
from grace.learner.journal import Journal
from grace.learner.learner import Learner
from grace.runs.run import run_experiment
from grace.settings.experiment import (
    BackboneSettings,
    DataSettings,
    EngineSettings,
    ExperimentSettings,
    MemorySettings,
    ScenarioSettings,
)
from grace.settings.methods import (
    DERSettings,
    EWCSettings,
    FinetuneSettings,
    FosterSettings,
    GraceSettings,
    ICaRLSettings,
    JointSettings,
    MemoSettings,
    ReplaySettings,
    WASettings,
)
from grace.settings.recipe import Recipe

FIRST = Recipe(epochs=12, batch_size=8, lr=0.1)
SHORT = Recipe(epochs=2, batch_size=12, lr=0.02)
BASE, LATER = {"base": FIRST}, {"base": FIRST, "update": SHORT}
GRACE = {"base": FIRST, "grow": SHORT, "compress": SHORT}
METHODS: dict[str, Any] = {
    "finetune": FinetuneSettings(**LATER),
    "replay": ReplaySettings(**LATER),
    "icarl": ICaRLSettings(**LATER),
    "wa": WASettings(**LATER),
    "ewc": EWCSettings(**LATER),
    "der": DERSettings(grow=SHORT, **BASE),
    "foster": FosterSettings(boost=SHORT, compress=SHORT, **BASE),
    "memo": MemoSettings(grow=SHORT, **BASE),
    # It begins anew at every task: short, lest rounding grow.
    "joint": JointSettings(base=SHORT),
    "grace-compressed": GraceSettings(threshold=1.0, **GRACE),
    "grace-grown": GraceSettings(expand_at=(2,), assess_on="previous", **GRACE),
    "grace": GraceSettings(threshold=1.0, **GRACE),
}
MEMORIES = {
    "replay": MemorySettings(size=None, max_mb=0.1),
    "wa": MemorySettings(per_class=3),
    "ewc": MemorySettings(size=14, validation=2),
    "grace": MemorySettings(size=14, validation=2),
    "grace-compressed": MemorySettings(size=14, validation=2),
    "grace-grown": MemorySettings(size=14, validation=2),
}


def settings(variant: str, backbone: str = "resnet20", **changes: Any) -> ExperimentSettings:
    sections = {
        "name": "earlier",
        "data": DataSettings(augmentation="shift"),
        "memory": MEMORIES.get(variant, MemorySettings(size=14)),
        "backbone": BackboneSettings(name=backbone, stem="cifar"),
        "engine": EngineSettings(device="cpu", compile=False, threads=1),
        "method": METHODS[variant],
    }
    return ExperimentSettings(**(sections | changes))


def created(home: Path | None, *arguments: Any) -> Learner:
    return Learner.create(
        settings(*arguments), shape=(3, 8, 8), mean=(0.4,) * 3, std=(0.3,) * 3, directory=home
    )


def draw(images: Path) -> None:
    """One quadrant bright, or from the fifth class on one dark."""
    for index, name in enumerate(NAMES):
        draws = torch.Generator().manual_seed(index)
        pixels = torch.randint(0, 80, (14, 8, 8, 3), generator=draws)
        row, column = divmod(index % 4, 2)
        pixels[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 150
        pixels = (pixels if index < 4 else 255 - pixels).to(torch.uint8)
        for number, own in enumerate(pixels):
            part = images / ("train" if number < 12 else "test") / name
            part.mkdir(parents=True, exist_ok=True)
            Image.fromarray(own.numpy()).save(part / f"{number:02d}.png", optimize=True)


def keep(path: Path, found: Any) -> None:
    path.write_text(json.dumps(found), encoding="utf-8")


def write_learners(images: Path, folder: Path) -> None:
    for variant in VARIANTS:
        home = folder / variant
        learner = created(home, variant)
        kept: dict[str, Any] = {"scores": {}}
        for number in (1, 2):
            kept[f"task {number}"] = told(taught(images, learner, number), learner)
            kept["scores"][str(number)] = said(images, learner)
        # The third task as this commit learns it, elsewhere.
        elsewhere = Path(shutil.copytree(home, folder / "third"))
        third = loaded(images, elsewhere)
        kept["task 3"] = told(taught(images, third, 3), third)
        kept["scores"]["3"] = said(images, third)
        shutil.rmtree(elsewhere)
        keep(folder / f"{variant}.json", kept)


def write_networks(images: Path, folder: Path) -> None:
    """Whole networks; each tensor holds one number of its own, so that the files pack well."""
    for (short, name), method in itertools.product(NETWORKS.items(), ("memo", "finetune")):
        learner = created(None, method, name)
        taught(images, learner, 1)
        if method == "memo" and short != "resnet18":  # It has 45 megabytes as it is.
            taught(images, learner, 2)
        state = learner.method.network.state_dict()
        for place, (path, tensor) in enumerate(state.items(), start=1):
            if tensor.is_floating_point():
                # Sums over what is read stay near what they were, and above the means.
                num_read = 1 if tensor.ndim == 1 else tensor[0].numel()
                share = 0.01 if path.endswith("running_mean") else 1
                tensor.fill_(share * (1 + 0.01 * place) / num_read)
        learner.method.network.head.weight.data[::2] *= 0.5
        learner.save(folder / f"{short}-{method}")
        found = said(images, Learner.load(folder / f"{short}-{method}"))
        keep(folder / f"{short}-{method}.json", {"scores": found})


def killed(kill: Callable[[], None], work: Callable[[], object]) -> None:
    """Do some work in a process of its own that ``kill`` has prepared to end in its midst."""
    child = os.fork()
    if child == 0:
        try:
            kill()
            work()
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 137, status


def within(name: str) -> Callable[[], None]:
    """Die once the first epoch of a phase of that name is kept, and not all of them."""

    def kill() -> None:
        offer = Journal.offer_phase

        def dying(journal: Journal, number: int, phase: Phase, take: Any, *, is_last: bool) -> None:
            offer(journal, number, phase, take, is_last=is_last)
            if phase.name == name and not is_last:
                os._exit(137)

        Journal.__init__.__defaults__ = (0.0, 0.0)  # A snapshot after every epoch, however short.
        Journal.offer_phase = dying  # type: ignore[method-assign]

    return kill


def after(name: str) -> Callable[[], None]:
    """Die once a sweep of that name is kept."""

    def kill() -> None:
        perform = Journal.perform

        def dying(journal: Journal, number: int, item: Any, trainer: Any) -> Any:
            result = perform(journal, number, item, trainer)
            if item.name == name:
                os._exit(137)
            return result

        Journal.perform = dying  # type: ignore[method-assign]

    return kill


def write_unfinished(images: Path, folder: Path) -> None:
    kills = {
        "grace": within("compress"),
        "ewc": after("fisher"),
        "foster": within("compress"),
        "memo": within("grow"),
        "icarl": after("herd"),
    }
    for variant in UNFINISHED:
        home, straight = folder / variant, folder / f"{variant}-straight"
        taught(images, created(home, variant), 1)
        shutil.copytree(home, straight)
        learner = Learner.load(straight)
        found = told(taught(images, learner, 2), learner)
        learner.keep_versions(1)
        keep(folder / f"{variant}.json", {"task 2": found, "scores": said(images, learner)})
        killed(kills[variant], lambda home=home: taught(images, Learner.load(home), 2))
        assert (home / "pending" / "update.json").exists()


def write_runs(folder: Path) -> None:
    """Of four classes in three tasks; the working folder is that of the images."""
    chosen = settings(
        "grace",
        data=DataSettings(
            source="folder", root="images", image_size=8, max_classes=4, augmentation="shift"
        ),
        scenario=ScenarioSettings(base=2, increment=1),
    )
    run_experiment(chosen, folder / "run-straight")
    killed(within("compress"), lambda: run_experiment(chosen, folder / "run"))
    assert len((folder / "run" / "tasks.jsonl").read_text().splitlines()) == 1


def pack(folder: Path, file: Path) -> None:
    """Pack without names of people, times or rights."""
    with tarfile.open(file, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.name == "lock":
                continue
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            data = path.read_bytes()
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def describe_no_machine(patch: pytest.MonkeyPatch) -> None:
    """Leave out of records which machine wrote them."""
    collect = grace.runs.writing.collect_hardware
    patch.setattr(
        grace.runs.writing,
        "collect_hardware",
        lambda *given: collect(*given) | {"platform": "Linux", "cpu": "x86_64"},
    )


def main() -> None:
    """Write everything."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place)
        patch.chdir(folder)
        images = Path("images")
        for name in ("learners", "networks", "unfinished"):
            (folder / name).mkdir()
        draw(images)
        describe_no_machine(patch)
        write_networks(images, Path("networks"))
        use_tiny_backbones(patch)
        write_learners(images, Path("learners"))
        write_unfinished(images, Path("unfinished"))
        write_runs(Path())
        pack(folder / "networks", WHOLE_NETWORKS)
        shutil.rmtree(folder / "networks")
        pack(folder, WRITTEN)


if __name__ == "__main__":
    main()
