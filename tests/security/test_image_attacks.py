"""Images, folders and archives of strangers: a result, or an error that names the file."""

import io
import os
import random
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, features

from grace.base.errors import GraceError
from grace.data import decoders
from grace.data.decoders import look_at_all, read_pixels
from grace.data.decoding import MAX_PIXELS, Reading, decode, naming
from grace.data.folder_tree import images_below, scan
from grace.data.folders import load_update
from grace.data.sources import load_dataset
from grace.settings.experiment import DataSettings
from support.odd_images import bomb, encoded, noise, put

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


def outcome(path: Path) -> str:
    """Read a file as every verb does; return what came of it."""
    try:
        pixels = read_pixels(path, Reading(3, 8))
    except GraceError as error:
        assert path.name in str(error)  # noqa: PT017 - a result is right, too
        return "refused"
    assert pixels.shape == (8, 8, 3)
    return "read"


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_of_every_format(tmp_path: Path, kind: str) -> None:
    whole = encoded(noise(1, (20, 16)), kind)
    draw = random.Random(f"{kind} 0")  # noqa: S311 - not a secret
    path = tmp_path / "a.png"  # A name that is wrong for most.
    for number in range(25):
        data = bytearray(whole)
        if number < 8:
            data = data[: draw.randrange(len(data))]
        for _ in range(1 + number % 4):
            if data:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        outcome(path)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "CMYK", "I;16", "I", "F", "RGBA", "RGB"])
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (70, 3)])
def test_odd_modes_and_sizes(tmp_path: Path, mode: str, size: tuple[int, int]) -> None:
    kind = "PNG" if mode in ("1", "L", "P", "LA", "I;16", "RGBA", "RGB") else "TIFF"
    path = put(tmp_path / "a.png", encoded(Image.new(mode, size), kind))
    assert outcome(path) == ("refused" if mode == "F" else "read")


@pytest.mark.parametrize("brand", ["avif", "heic", "mif1"])
def test_frames_of_films_are_refused(tmp_path: Path, brand: str) -> None:
    """A file of one kilobyte whose header said 8×8 pixels took 253 MB: its frame had 8192×8192."""
    path = put(tmp_path / "a.jpg", b"\0\0\0\x1cftyp" + brand.encode() + bytes(40))
    with pytest.raises(GraceError, match=r"a\.jpg': AVIF and HEIC images are not read") as caught:
        read_pixels(path, Reading(3, 8))
    assert caught.value.remedy == "convert it to JPEG or PNG"
    if brand == "avif" and features.check("avif"):
        assert outcome(put(tmp_path / "b.avif", encoded(noise(1, (16, 16)), "AVIF"))) == "refused"


def test_the_limit_of_pixels_is_a_setting(tmp_path: Path) -> None:
    path = put(tmp_path / "a.png", noise(0, (20, 10)))
    assert read_pixels(path, Reading(3, 8, max_pixels=200)).shape == (8, 8, 3)
    with pytest.raises(GraceError, match=r"a\.png': 20×10 pixels are too many.*data\.max_pixels"):
        read_pixels(path, Reading(3, 8, max_pixels=199))
    assert DataSettings().max_pixels == MAX_PIXELS


@pytest.mark.parametrize("size", [(0, 5), (2**31 - 1, 1), (50_000, 50_000), (10_000, 10_000)])
def test_headers_that_promise_too_much(tmp_path: Path, size: tuple[int, int]) -> None:
    assert outcome(put(tmp_path / "a.png", bomb(*size))) == "refused"


def test_one_huge_image_among_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for all was made in the size of the first: 215 GB for 800 images."""
    paths = [tmp_path / f"ant/{n}.png" for n in range(9)]
    for n, path in enumerate(paths):
        put(path, noise(n, (64 if n == 0 else 4, 64)))
    monkeypatch.setattr("grace.data.folders.memory_bytes", lambda: 64 * 64 * 3 * 4)
    with pytest.raises(GraceError, match="different sizes in pixels"):
        load_update(tmp_path, Reading())
    for n, path in enumerate(paths):
        put(path, noise(n, (64, 64)))
    with pytest.raises(GraceError, match=r"images of 64×64 pixels, as '.*2\.png' has, take 36"):
        load_update(tmp_path, Reading())


def chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def tiff_block(num_tags: int, size: int) -> bytes:
    """A block whose tags all name the same ``size`` bytes."""
    entries = [struct.pack("<HHLL", 1000 + n, 7, size, 8) for n in range(num_tags)]
    block = b"II*\0" + struct.pack("<LH", 8, num_tags) + b"".join(entries) + bytes(4)
    return block.ljust(size, b"\0")


def jpeg_with(content: bytes) -> bytes:
    whole = encoded(noise(0), "JPEG")
    return whole[:20] + content + whole[20:]


def exif_segment(size: int) -> bytes:
    content = b"Exif\0\0" + tiff_block(5000, size)
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


def many_scans(num: int) -> bytes:
    whole = encoded(Image.new("L", (1000, 1000), 100), "JPEG", progressive=True)
    return whole[:-2] + num * whole[whole.rindex(b"\xff\xda") : -2] + whole[-2:]


PNG = encoded(noise(0))
LONG_WEBP = encoded(noise(1, (64, 50)), "WEBP")
LONG_WEBP = LONG_WEBP[:4] + struct.pack("<L", 2**27 - 8) + LONG_WEBP[8:] + b"JUNK\0\0\0\x08"
ATTACKS: dict[str, tuple[Callable[[], bytes], int]] = {
    # Tags of one megabyte in all took gigabytes: each was copied out of the same block.
    "tags of a TIFF file": (lambda: tiff_block(5000, 400_000), 0),
    "tags of a JPEG file": (lambda: jpeg_with(exif_segment(60_000)), 0),
    # Decoders skip them one by one: a gigabyte took minutes.
    "zeros in a JPEG file": (lambda: jpeg_with(bytes(2 * 10**8)), 0),
    "segments of nothing": (lambda: jpeg_with(10**7 * b"\xff\xfe\0\2"), 0),
    "a GIF file of holes": (lambda: encoded(noise(1), "GIF")[:13], 2**31),
    "a WebP file of holes": (lambda: LONG_WEBP, 2**27),
    # Ten megabytes of them took seconds for one image, a gigabyte minutes.
    "empty chunks": (lambda: PNG[:33] + 5 * 10**6 * chunk(b"abCd", b"") + PNG[33:], 0),
    "text that swells": (lambda: PNG[:33] + 100 * chunk(b"zTXt", _TEXT) + PNG[33:], 0),
    "scans": (lambda: many_scans(30_000), 0),
}
_TEXT = b"a\0\0" + zlib.compress(bytes(10**6))
MAY_BE_READ = {"tags of a JPEG file"}
"""Its tags take 300 MB, less than a decoder has."""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_in_one_line(tmp_path: Path, name: str) -> None:
    """Within the time and memory that one file may take, and the next file is read."""
    make, length = ATTACKS[name]
    path, good = put(tmp_path / "a.png", make()), put(tmp_path / "b.png", noise(1))
    if length:
        os.truncate(path, length)  # Holes, which take no room on the disk.
    code = (
        "import sys, resource\nfrom pathlib import Path\n"
        "from grace.data import decoders\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        print(decoders.read_pixels(Path(name), decoders.Reading(3, 8)).shape)\n"
        "    except ValueError as error:\n        print(error)\n"
        "decoders.end_decoders()\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_maxrss, used.ru_utime + used.ru_stime)"
    )
    words = [sys.executable, "-c", code, str(path), str(good)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    first, second, used = done.stdout.splitlines()
    assert second == "(8, 8, 3)"
    if not (name in MAY_BE_READ and first == "(8, 8, 3)"):
        assert "a.png': " in first
        assert len(first) < len(str(path)) + 200
    kilobytes, seconds = map(float, used.split())
    assert kilobytes < 420_000
    assert seconds < 6.5, "five seconds, and the start of two processes"


@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - MAY_BE_READ - {"scans"}))
def test_the_first_check_holds_without_limits_of_a_process(tmp_path: Path, name: str) -> None:
    """Where the system limits neither time nor memory, what stands before the pixels is bounded."""
    make, length = ATTACKS[name]
    path = put(tmp_path / "a.png", make())
    if length:
        os.truncate(path, length)
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(GraceError, match=r"a\.png'"), naming(path):
        decode(path, Reading())
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


def test_a_folder_of_attacks_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them takes seconds: a thousand would take hours."""
    paths = [put(tmp_path / f"{number}.png", noise(number)) for number in range(5)]
    # A decoder that ends instead of giving an answer.
    monkeypatch.setattr(sys, "executable", "/bin/true")
    monkeypatch.setattr(decoders, "MOST_ENDED", 3)
    decoders.end_decoders()
    found = look_at_all(paths, Reading(3, 8))
    for _ in range(3):
        assert "ends the decoder" in str(next(found))
    with pytest.raises(GraceError, match=r"more than 3 images .* such as '.*3\.png': remove them"):
        next(found)


def test_large_images_are_read_in_a_gigabyte(tmp_path: Path) -> None:
    image = Image.linear_gradient("L").resize((9400, 9400)).convert("RGB")
    path = put(tmp_path / "a", encoded(image, "JPEG"))
    assert read_pixels(path, Reading(3, 64)).shape == (64, 64, 3)


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    """A pipe that replaced an image after the scan made a reader wait for ever."""
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("/dev/zero")
    (tmp_path / "c.png").symlink_to("c.png")
    (tmp_path / "d.png").symlink_to("nothing")
    (tmp_path / "e.png").mkdir()
    for name in "abcde":
        assert outcome(tmp_path / f"{name}.png") == "refused"


def test_modules_come_from_grace_not_from_the_folder(tmp_path: Path) -> None:
    """A decoder that is started in a stranger's folder imports nothing from there."""
    put(tmp_path / "PIL/__init__.py", b"raise SystemExit(1)")
    put(tmp_path / "a.png", noise(0))
    code = (
        "from pathlib import Path\nfrom grace.data.decoders import Reading, read_pixels\n"
        "print(read_pixels(Path('a.png'), Reading(3, 8)).shape)"
    )
    words = [sys.executable, "-P", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "(8, 8, 3)\n"


def test_folders_of_any_depth(tmp_path: Path) -> None:
    """A folder 1,500 deep ended in a RecursionError."""
    start, depth = Path.cwd(), 1500
    put(tmp_path / "ant/a.png", noise(0))
    try:
        os.chdir(tmp_path / "ant")
        for _ in range(depth):
            Path("d").mkdir()
            os.chdir("d")
        Path("b.png").write_bytes(b"")
        os.chdir(start)
        found = images_below(tmp_path / "ant", [])
        assert len(found) == 2
        assert scan(tmp_path).class_names == ["ant"]
    finally:
        os.chdir(start)
        subprocess.run(["rm", "-rf", str(tmp_path / "ant")], check=True)


def archive(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for own in members:
            tar.addfile(own, io.BytesIO(bytes(own.size)) if 0 < own.size < 2**30 else None)
    return out.getvalue()


def member(name: str, **facts: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
    for key, value in facts.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "info",
    [
        member("test_batch.bin", type=tarfile.LNKTYPE, linkname="test_batch.bin"),
        member("test_batch.bin", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("test_batch.bin", type=tarfile.FIFOTYPE),
        member("test_batch.bin", size=2**40),
        member("../../outside", size=10),
        member("bomb", size=10**8),
        b"\x1f\x8b half",
    ],
    ids=["link", "symbolic link", "pipe", "huge", "outside", "bomb", "cut off"],
)
def test_an_archive_of_a_stranger_is_never_opened(
    tmp_path: Path, info: tarfile.TarInfo | bytes
) -> None:
    data = info if isinstance(info, bytes) else archive(info)
    path = put(tmp_path / "inside/cifar-10-binary.tar.gz", data)
    for length in (len(data), 2**33):
        os.truncate(path, length)  # Then as large as a disk, of zeros that take no room.
        with pytest.raises(GraceError, match=r"binary\.tar\.gz' is damaged: remove it"):
            load_dataset(DataSettings(source="cifar10", root=str(path.parent)))
    assert list(tmp_path.rglob("*")) == [path.parent, path]
