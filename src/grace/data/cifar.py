"""CIFAR-10 and CIFAR-100 from their binary archives: records of one length, read as they are.

Shapes: N images.
"""

import os
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import final

import numpy as np
import torch

from grace.base.errors import GraceError
from grace.base.files import given_path
from grace.data.arrays import finish
from grace.data.images import Dataset, LabelledImages, TensorImages
from grace.settings.experiment import DataSettings

_MAX_BYTES = 300_000_000
"""Bytes of an archive; the published ones have 170 MB."""
_ANEW = "remove it, it will be fetched anew"


@final
@dataclass(frozen=True, kw_only=True)
class _Archive:
    """The published archive of one of the two data sets."""

    num_classes: int
    md5: str
    folder: str
    train: Sequence[str]
    test: str
    class_names: str
    """File of the class names, one per line."""
    num_labels: int
    """Label bytes before the pixels of a record; the last one is the class."""

    @property
    def files(self) -> list[str]:
        """All files that are needed."""
        return [*self.train, self.test, self.class_names]


_ARCHIVES = {
    "cifar10": _Archive(
        num_classes=10,
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        train=[f"data_batch_{number}.bin" for number in range(1, 6)],
        test="test_batch.bin",
        class_names="batches.meta.txt",
        num_labels=1,
    ),
    "cifar100": _Archive(
        num_classes=100,
        md5="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        train=["train.bin"],
        test="test.bin",
        class_names="fine_label_names.txt",
        num_labels=2,
    ),
}


def load_cifar(settings: DataSettings) -> Dataset:
    """Load CIFAR-10, or CIFAR-100 with its fine labels; missing files are downloaded.

    They lie in ``root/cifar-10-batches-bin`` or ``root/cifar-100-binary``, where ``root`` defaults
    to ``~/.cache/grace``, or ``$XDG_CACHE_HOME/grace`` where that is set. The checksum of the
    archive is verified; of files on disk, only sizes and labels are checked.

    Raises:
        GraceError: if the files are missing and cannot be downloaded, or are damaged.
    """
    archive = _ARCHIVES[settings.source]
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = given_path(settings.root or f"{caches}/grace")
    folder = root / archive.folder
    if not all((folder / name).is_file() for name in archive.files):
        _fetch(root, archive)
    path = folder / archive.class_names
    with path.open("rb") as file:
        lines = file.read(2**16).decode(errors="replace").splitlines()
    names = [line.strip() for line in lines if line.strip()]
    if len(names) != archive.num_classes:
        raise GraceError(f"'{path}' does not name {archive.num_classes} classes", _ANEW)
    whole = Dataset(
        name=settings.source,
        train=_read([folder / name for name in archive.train], archive),
        test=_read([folder / archive.test], archive),
        class_names=names,
        # docs/protocols.md#augmentation: one pair of constants, CIFAR-100's, for both sets.
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    )
    return finish(whole, settings)


def _read(paths: Sequence[Path], archive: _Archive) -> LabelledImages:
    """Read images of 3×32×32 pixels from files, in their order."""
    length = archive.num_labels + 3 * 32 * 32
    parts = []
    for path in paths:
        size = path.stat().st_size
        # The largest file has 50,000 records.
        if size % length or not 0 < size <= 50_000 * length:
            what = f"'{path}' has {size} bytes, which are no records of {length} bytes"
            raise GraceError(what, _ANEW)
        parts.append(np.fromfile(path, dtype=np.uint8).reshape(-1, length))
        if parts[-1][:, archive.num_labels - 1].max() >= archive.num_classes:
            raise GraceError(f"'{path}' has labels outside 0..{archive.num_classes - 1}", _ANEW)
    records = torch.from_numpy(np.concatenate(parts))
    pixels = records[:, archive.num_labels :].contiguous().view(-1, 3, 32, 32)
    labels = records[:, archive.num_labels - 1].long()
    return LabelledImages(TensorImages(pixels), labels)


def _fetch(root: Path, archive: _Archive) -> None:
    """Unpack the needed files of the archive in ``root``; download it if it is not there.

    Only the published archive is opened, as its checksum tells: none that was forged or damaged.
    """
    from torchvision.datasets.utils import check_integrity, download_url

    name = f"cifar-{archive.num_classes}-binary.tar.gz"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        packed = root / name
        if packed.is_file():
            if packed.stat().st_size > _MAX_BYTES or not check_integrity(packed, archive.md5):
                raise GraceError(f"'{packed}' is damaged", _ANEW)
        else:
            url = f"https://www.cs.toronto.edu/~kriz/{name}"
            try:
                download_url(url, scratch, name, archive.md5)
            except (OSError, RuntimeError, HTTPException) as error:
                raise GraceError(
                    f"no '{root / archive.folder}' and fetching {url} failed ({error})",
                    f"put {name} from there into '{root}' (the binary version: files of the "
                    "Python version are not read), or set data.root to where it is",
                ) from None
            packed = Path(scratch) / name
        (root / archive.folder).mkdir(exist_ok=True)
        wanted = {f"{archive.folder}/{file}" for file in archive.files}
        with tarfile.open(packed, "r|gz") as tar:
            for member in tar:
                if member.name in wanted:
                    tar.extract(member, scratch, set_attrs=False, filter="data")
                    (Path(scratch) / member.name).replace(root / member.name)
