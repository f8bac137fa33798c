"""CIFAR-10 and CIFAR-100 from their binary archives: records of one length, read as they are.

Shapes: N images.
"""

import gzip
import http.client
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast, final

import numpy as np
import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.base.machine import cache_folder
from grace.base.words import first_line
from grace.data.arrays import RawDataset, finish
from grace.data.images import Dataset
from grace.settings.experiment import DataSettings


@final
@dataclass(frozen=True, kw_only=True)
class _Archive:
    """The published archive of one of the two data sets."""

    num_classes: int
    filename: str
    md5: str
    folder: str
    train: Sequence[str]
    test: Sequence[str]
    class_names: str
    """File of the class names, one per line."""
    num_labels: int
    """Label bytes before the pixels of a record; the last one is the class."""

    @property
    def files(self) -> list[str]:
        """All files that are needed."""
        return [*self.train, *self.test, self.class_names]


_MAX_NAMES = 2**16
"""Bytes of a file of class names that are read; the largest has two thousand."""
_MAX_ARCHIVE = 300_000_000
"""Bytes of an archive, and of what is unpacked from it; the published ones have 190 MB."""

_MAX_MEMBER = 50_000 * 3074
"""Bytes of a member: the largest has 50,000 records."""
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)

_CIFAR10 = _Archive(
    num_classes=10,
    filename="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train=[f"data_batch_{number}.bin" for number in range(1, 6)],
    test=["test_batch.bin"],
    class_names="batches.meta.txt",
    num_labels=1,
)
_CIFAR100 = _Archive(
    num_classes=100,
    filename="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train=["train.bin"],
    test=["test.bin"],
    class_names="fine_label_names.txt",
    num_labels=2,
)


def load_cifar10(settings: DataSettings) -> Dataset:
    """Load CIFAR-10 from ``root/cifar-10-batches-bin``; missing files are downloaded.

    ``root`` defaults to the cache folder (``cache_folder``). The checksum of the archive is
    verified; of files on disk, only sizes and labels are checked.

    Raises:
        GraceError: if the files are missing and cannot be downloaded, or are damaged.
    """
    return _load(settings, _CIFAR10)


def load_cifar100(settings: DataSettings) -> Dataset:
    """Load CIFAR-100, with its fine labels, from ``root/cifar-100-binary``; see ``load_cifar10``.

    Raises:
        GraceError: as ``load_cifar10``.
    """
    return _load(settings, _CIFAR100)


def _load(settings: DataSettings, archive: _Archive) -> Dataset:
    root = Path(settings.root).expanduser() if settings.root else cache_folder()
    folder = root / archive.folder
    if not all((folder / name).is_file() for name in archive.files):
        _fetch(root, archive)
    with (folder / archive.class_names).open("rb") as file:
        lines = file.read(_MAX_NAMES).decode(errors="replace").splitlines()
    names = [line.strip() for line in lines if line.strip()]
    if len(names) != archive.num_classes:
        raise GraceError(
            f"'{folder / archive.class_names}' does not name {archive.num_classes} classes",
            "remove it, it will be fetched anew",
        )
    raw = RawDataset(
        name=f"cifar{archive.num_classes}",
        train=_read([folder / name for name in archive.train], archive),
        test=_read([folder / name for name in archive.test], archive),
        class_names=names,
    )
    # docs/protocols.md#augmentation: one pair of constants, CIFAR-100's, for both sets.
    return finish(raw, settings, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def _read(paths: Sequence[Path], archive: _Archive) -> tuple[Tensor, Tensor]:
    """Read pixels (N, 3, 32, 32) uint8 and labels (N,) int64 from files, in their order."""
    length = archive.num_labels + 3 * 32 * 32
    for path in paths:
        size = path.stat().st_size
        # The largest file has 50,000 records.
        if size % length or not 0 < size <= 50_000 * length:
            raise GraceError(
                f"'{path}' has {size} bytes, which are no records of {length} bytes",
                "remove it, it will be fetched anew",
            )
    records = [np.fromfile(path, dtype=np.uint8).reshape(-1, length) for path in paths]
    for path, record in zip(paths, records, strict=True):
        if record[:, archive.num_labels - 1].max() >= archive.num_classes:
            raise GraceError(
                f"'{path}' has labels outside 0..{archive.num_classes - 1}",
                "remove it, it will be fetched anew",
            )
    pixels = np.concatenate([record[:, archive.num_labels :] for record in records])
    labels = np.concatenate([record[:, archive.num_labels - 1] for record in records])
    return torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(labels).long()


def _fetch(root: Path, archive: _Archive) -> None:
    """Download the archive, or use the one in ``root``, and extract the needed files."""
    from torchvision.datasets.utils import check_integrity, download_url

    there = root / archive.filename
    if there.is_file():
        if there.stat().st_size > _MAX_ARCHIVE or not check_integrity(there, archive.md5):
            raise GraceError(f"'{there}' is damaged", "remove it, it will be fetched anew")
        _extract(there, root / archive.folder, archive.files)
        return
    url = f"https://www.cs.toronto.edu/~kriz/{archive.filename}"
    root.mkdir(parents=True, exist_ok=True)
    # Fetched beside and moved into place: a broken download leaves nothing behind.
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        try:
            download_url(url, scratch, archive.filename, archive.md5)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            raise GraceError(
                f"no '{root / archive.folder}' and fetching {url} failed ({error})",
                f"put {archive.filename} from there into '{root}' (the binary version: files of "
                "the Python version are not read), or set data.root to where it is",
            ) from None
        _extract(Path(scratch) / archive.filename, root / archive.folder, archive.files)


def _extract(archive: Path, folder: Path, names: Sequence[str]) -> None:
    """Extract only the named members of an archive: regular files, read in order.

    Raises:
        GraceError: if the archive lacks one, or holds something else under its name.
    """
    missing = {f"{folder.name}/{name}": folder / name for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # As a stream: links are never followed, and what is unpacked can be counted.
        with (
            gzip.open(archive) as unpacked,
            tarfile.open(
                fileobj=cast("IO[bytes]", _Bounded(unpacked, _MAX_ARCHIVE)), mode="r|"
            ) as tar,
        ):
            for member in tar:
                path = missing.get(member.name)
                if path is None:
                    continue
                source = tar.extractfile(member) if member.type in _REGULAR else None
                if source is None or member.size > _MAX_MEMBER:
                    break
                del missing[member.name]
                _copy(source, path)
                if not missing:
                    return
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, OverflowError) as error:
        raise GraceError(f"'{archive}' is damaged ({first_line(error)})", "remove it") from None
    raise GraceError(f"'{archive}' lacks {next(iter(missing))}", "remove it")


def _copy(source: IO[bytes], path: Path) -> None:
    handle, scratch = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as out:
        shutil.copyfileobj(source, out)
    Path(scratch).chmod(0o644)
    Path(scratch).replace(path)


@final
class _Bounded:
    """Reads at most ``most`` bytes of a stream, then fails."""

    def __init__(self, file: gzip.GzipFile, most: int) -> None:
        self._file = file
        self._left = most

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError("there is too much in it")
        return self._file.read(size)
