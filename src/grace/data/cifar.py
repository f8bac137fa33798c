"""CIFAR-10 and CIFAR-100 in the files torchvision's downloader leaves on disk."""

import http.client
import os
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from grace.configs.experiment import DataSettings
from grace.data.arrays import RawDataset, finish
from grace.data.images import Dataset
from grace.data.object_stream import read_object_stream
from grace.text.refusals import GraceError


def load_cifar10(settings: DataSettings) -> Dataset:
    """Load CIFAR-10 from ``root/cifar-10-batches-py``; see ``load_cifar``."""
    return load_cifar(settings, 10)


def load_cifar100(settings: DataSettings) -> Dataset:
    """Load CIFAR-100 (fine labels) from ``root/cifar-100-python``; see ``load_cifar``."""
    return load_cifar(settings, 100)


def load_cifar(settings: DataSettings, num_classes: int) -> Dataset:
    """Load a CIFAR set, downloading it where it is absent.

    ``root`` defaults to ``~/.cache/grace``. The archive's checksum is verified; files on disk are
    taken as they are, after checking that they hold what they should.

    Args:
        settings: root, filters, image size.
        num_classes: 10 or 100.

    Raises:
        ValueError: if the files are absent and cannot be fetched, or damaged.
    """
    from torchvision.datasets import CIFAR10, CIFAR100

    source = CIFAR10 if num_classes == 10 else CIFAR100
    root = Path(settings.root or "~/.cache/grace").expanduser()
    files = _Files(
        folder=root / source.base_folder,
        train=[name for name, _ in source.train_list],
        test=[name for name, _ in source.test_list],
        meta=source.meta["filename"],
    )
    if not files.are_there():
        _fetch(root, source.url, source.filename, source.tgz_md5, files)
    names_file = files.folder / files.meta
    names = read_object_stream(names_file).get(source.meta["key"])
    if not isinstance(names, list) or len(names) != num_classes:
        raise GraceError(f"'{names_file}' does not name {num_classes} classes", "fetch it anew")
    raw = RawDataset(
        name=f"cifar{num_classes}",
        train=files.read(files.train, num_classes),
        test=files.read(files.test, num_classes),
        class_names=[str(name) for name in names],
    )
    # docs/protocols.md#augmentation: one pair of constants, CIFAR-100's, for both sets.
    return finish(raw, settings, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


@final
class _Files:
    """The files of a set inside its folder."""

    def __init__(self, folder: Path, train: Sequence[str], test: Sequence[str], meta: str) -> None:
        self.folder = folder
        self.train = train
        self.test = test
        self.meta = meta

    @property
    def names(self) -> list[str]:
        """All file names."""
        return [*self.train, *self.test, self.meta]

    def are_there(self) -> bool:
        """Whether every file exists."""
        return all((self.folder / name).is_file() for name in self.names)

    def read(self, names: Sequence[str], num_classes: int) -> tuple[Tensor, Tensor]:
        """Read pixels (N, 3, 32, 32) uint8 and labels (N,) int64 of some of the files."""
        parts = [_read_batch(self.folder / name, num_classes) for name in names]
        return torch.cat([pixels for pixels, _ in parts]), torch.cat([label for _, label in parts])


def _read_batch(path: Path, num_classes: int) -> tuple[Tensor, Tensor]:
    content = read_object_stream(path)
    key = "labels" if num_classes == 10 else "fine_labels"
    pixels: Any = content.get("data")
    labels: Any = content.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (3 * 32 * 32,):
        raise GraceError(f"'{path}' holds no images of 3×32×32 under 'data'", "fetch it anew")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise GraceError(f"'{path}' lacks a label for each image under '{key}'", "fetch it anew")
    if not all(isinstance(label, int) and 0 <= label < num_classes for label in labels):
        raise GraceError(f"'{path}' has labels outside 0..{num_classes - 1}", "fetch it anew")
    images = torch.tensor(pixels).view(-1, 3, 32, 32)
    return images, torch.tensor(labels, dtype=torch.int64)


def _fetch(root: Path, url: str, filename: str, md5: str, files: _Files) -> None:
    """Bring the archive, or use the one in ``root``, and take the needed files out of it."""
    from torchvision.datasets.utils import check_integrity, download_url

    archive = root / filename
    if archive.is_file():
        if not check_integrity(archive, md5):
            raise GraceError(f"'{archive}' is damaged", "remove it, it will be fetched anew")
        _extract(archive, files)
        return
    root.mkdir(parents=True, exist_ok=True)
    # Fetched beside and moved into place: a broken download leaves nothing behind.
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        try:
            download_url(url, scratch, filename, md5)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            raise GraceError(
                f"no '{files.folder}' and fetching {url} failed ({error})",
                f"put {filename} from there into '{root}', or set data.root to where it is",
            ) from None
        _extract(Path(scratch) / filename, files)


def _extract(archive: Path, files: _Files) -> None:
    """Take the wanted members out, and nothing else the archive may hold."""
    files.folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for name in files.names:
            try:
                member = tar.extractfile(f"{files.folder.name}/{name}")
            except KeyError:
                member = None
            if member is None:
                raise GraceError(f"'{archive}' lacks {files.folder.name}/{name}", "remove it")
            handle, scratch = tempfile.mkstemp(dir=files.folder)
            with os.fdopen(handle, "wb") as out:
                out.write(member.read())
            Path(scratch).chmod(0o644)
            Path(scratch).replace(files.folder / name)
