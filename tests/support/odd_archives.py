"""Archives as attackers make them: links, devices, paths that lead out, bombs, and damage."""

import gzip
import io
import random
import tarfile
from pathlib import Path

WANTED = ("there/x", "there/y")
_ODD_NAMES = (
    "/etc/x", "../x", "there/../../x", "./there/x", "there//x", "there/x/", "there", "x", "",
    "there/x\0y", "there/\udcff", "there/" + "z" * 300, "\x1b[31m", "there/y/../x",
)  # fmt: skip
_KINDS = (
    tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE,
    tarfile.DIRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z",
)  # fmt: skip
_TARGETS = (
    "there/x", "there/y", "x", "..", "/etc/passwd", "/dev/zero", "../../../outside", "there", "",
)  # fmt: skip


def archive(draw: random.Random) -> bytes:
    """Return a compressed archive that holds what is wanted, spoilt in some way, or not at all."""
    out = io.BytesIO()
    layout = draw.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=layout, errors="surrogateescape") as tar:
        for name in draw.sample(WANTED, draw.choice((2, 2, 2, 2, 1))):
            for _ in range(draw.choice((0, 0, 1, 2))):
                _add(tar, *_odd_member(draw))
            if draw.random() < 0.8:
                _add(tar, tarfile.TarInfo(name), draw.randbytes(draw.choice((0, 1, 1000))))
            else:
                _add(tar, *_odd_member(draw, name))
    data, how = out.getvalue(), draw.random()
    if how < 0.2:
        data = _with_odd_header(data, draw)
    packed = gzip.compress(data, 1)
    if how > 0.8:
        # Inside itself: compressed again, or as one of its own members.
        packed = gzip.compress(packed, 1) if how > 0.9 else packed + packed
    if 0.2 < how < 0.4:
        return _damaged(packed, draw)
    return packed


def occupy(place: Path, draw: random.Random) -> None:
    """Put links where files are to be unpacked: they are replaced, and not written through."""
    place.mkdir()
    for name in ("x", "y"):
        (place / name).symlink_to(draw.choice(("../../../outside", "/dev/full", "x", "nothing")))


def _add(tar: tarfile.TarFile, info: tarfile.TarInfo, data: bytes = b"") -> None:
    if data:
        info.size = len(data)
    tar.addfile(info, io.BytesIO(data) if data else None)


def _odd_member(draw: random.Random, name: str | None = None) -> tuple[tarfile.TarInfo, bytes]:
    """Draw a member of another kind, name or size; of any name if none is given."""
    info = tarfile.TarInfo(draw.choice((*_ODD_NAMES, *WANTED)) if name is None else name)
    choice = draw.randrange(4)
    if choice == 0:
        info.type, info.linkname = draw.choice(_KINDS), draw.choice(_TARGETS)
    elif choice == 1:  # It says that it is larger than it is.
        info.size = draw.choice((1, 511, 2**20, 200_000_000, 2**33, 2**62))
    elif choice == 2:
        info.pax_headers = {draw.choice(("path", "linkpath", "size", "GNU.sparse.map", "x")): "9"}
    else:  # A bomb: megabytes that compress to nothing.
        return info, bytes(draw.choice((10, 10**5, 4 * 10**6)))
    return info, b""


def _with_odd_header(data: bytes, draw: random.Random) -> bytes:
    """Change bytes of a member's header; its checksum is right again half of the time."""
    found = bytearray(data)
    place = 512 * draw.randrange(max(len(found) // 512, 1))
    for _ in range(draw.choice((1, 2, 8))):
        found[place + draw.randrange(512)] = draw.choice((0, 0x20, 0x30, 0x37, 0x39, 0x80, 0xFF))
    if draw.random() < 0.5:
        found[place + 148 : place + 156] = b" " * 8
        found[place + 148 : place + 156] = b"%06o\0 " % sum(found[place : place + 512])
    return bytes(found)


def _damaged(data: bytes, draw: random.Random) -> bytes:
    found = bytearray(data)
    if draw.random() < 0.3:
        return bytes(found[: draw.randrange(len(found))])
    for _ in range(draw.choice((1, 1, 8))):
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)
