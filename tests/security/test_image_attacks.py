"""Images, folders and archives of strangers: a result, or an error that names the file."""

import io
import os
import random
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, features

from grace.base.errors import GraceError
from grace.data import cifar
from grace.data.class_names import class_name, twins
from grace.data.decoding import decoded, read_pixels
from grace.data.decoding_budget import DecodingBudget
from grace.data.folder_tree import files_below, scan
from grace.data.reading import decode_all
from grace.settings.experiment import DataSettings
from support import odd_archives
from support.odd_images import animated, bomb, encoded, noise, put

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


def outcome(path: Path) -> str:
    """Read a file as every verb does; return what came of it."""
    try:
        pixels = read_pixels(path, 3, 8)
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


def test_sixteen_bits_are_rounded_as_before() -> None:
    """All levels were scaled in whole copies of 64-bit numbers: 12 times the image."""
    levels = np.arange(65536)
    old = (levels.astype(np.float64) / 257).round().astype(np.uint8)
    assert np.array_equal((levels.astype(np.int32) + 128) // 257, old)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16"])
def test_strips_are_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    draw = np.random.default_rng(0)
    if mode == "I;16":
        image = Image.fromarray(draw.integers(0, 65536, (40, 30), dtype=np.uint16))
    else:
        levels = draw.integers(0, 256, (40, 30, 4), dtype=np.uint8)
        image = Image.fromarray(levels)
        image = image.quantize(20) if mode == "P" else image.convert(mode)
    path = put(tmp_path / "a.png", encoded(image))
    whole = read_pixels(path, 3, None)
    monkeypatch.setattr("grace.data.decoding._LARGE", 100)
    assert np.array_equal(read_pixels(path, 3, None), whole)


@pytest.mark.parametrize("limit", ["_LARGE", "_LARGER"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_large_webp_is_bit_identical_and_upright(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, limit: str
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    image = noise(3, (50, 40)).convert(mode)
    if mode == "RGBA":
        image.putalpha(noise(4, (50, 40)).convert("L"))
    paths = [
        put(tmp_path / "a.webp", encoded(image, "WEBP", exif=exif)),
        put(tmp_path / "b.webp", encoded(image, "WEBP", lossless=True)),
        put(tmp_path / "c.webp", animated(image, noise(5, (50, 40)), "WEBP")),
    ]
    whole = [read_pixels(path, 3, None) for path in paths]
    assert whole[0].shape == (50, 40, 3)
    for name in ("_LARGE", limit):
        monkeypatch.setattr(f"grace.data.webp.{name}", 100)
    for path, pixels in zip(paths, whole, strict=True):
        assert np.array_equal(read_pixels(path, 3, None), pixels)
    cut = put(tmp_path / "d.webp", paths[1].read_bytes()[:-300])
    assert outcome(cut) == "refused"


@pytest.mark.parametrize("how", [{"quality": 80}, {"lossless": True}, {"icc_profile": bytes(99)}])
def test_a_webp_file_of_little_else_than_its_image_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """A file of 200 MB with an image of 64×64 pixels took 400 MB, in every thread."""
    monkeypatch.setattr("grace.data.image_file._MAX_METADATA", 20_000)
    whole = encoded(noise(1, (64, 50)), "WEBP", **how)
    long = whole[:4] + struct.pack("<L", 40_000 - 8) + whole[8:] + b"JUNK" + struct.pack("<L", 9)
    path = put(tmp_path / "a.webp", long.ljust(40_000, b"\0"))
    with pytest.raises(GraceError, match=r"a\.webp': .* bytes, too many for .* of 3200 pixels"):
        read_pixels(path, 3, 8)
    assert outcome(put(tmp_path / "b.webp", whole)) == "read"


def test_a_gif_file_of_gigabytes_is_not_searched(tmp_path: Path) -> None:
    """Its decoder skips what is no block byte by byte, 90 seconds for each gigabyte."""
    path = put(tmp_path / "a.gif", encoded(noise(1, (8, 8)), "GIF")[:13])
    os.truncate(path, 2**31)  # Holes, which take no room on the disk.
    with pytest.raises(GraceError, match=r"a\.gif': the file has 2147483648 bytes, too many"):
        read_pixels(path, 3, 8)


@pytest.mark.parametrize(("brand", "name"), [("avif", "AVIF"), ("heic", "HEIC"), ("mif1", "HEIC")])
def test_frames_of_films_are_refused(tmp_path: Path, brand: str, name: str) -> None:
    """A file of one kilobyte whose header said 8×8 pixels took 253 MB: its frame had 8192×8192."""
    path = put(tmp_path / "a.jpg", b"\0\0\0\x1cftyp" + brand.encode() + bytes(40))
    with pytest.raises(GraceError, match=rf"a\.jpg': .*{name} images are not read") as caught:
        read_pixels(path, 3, 8)
    assert caught.value.remedy == "convert it to JPEG or PNG"
    if brand == "avif" and features.check("avif"):
        whole = encoded(noise(1, (16, 16)), "AVIF")
        place = whole.index(b"ispe") + 8
        lying = whole[:place] + struct.pack(">LL", 8, 8) + whole[place + 8 :]
        with Image.open(put(tmp_path / "b.avif", lying)) as image:
            assert image.size == (8, 8)  # PIL shows what the header says.
        assert outcome(tmp_path / "b.avif") == "refused"


def test_an_animation_of_many_pixels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 89 megapixels took 1.6 GB: its decoder keeps two images and returns a third."""
    for name in ("_LARGE", "_LARGER", "_MOST"):
        monkeypatch.setattr(f"grace.data.webp.{name}", 100)
    path = put(tmp_path / "a.webp", animated(noise(1, (50, 40)), noise(2, (50, 40)), "WEBP"))
    with pytest.raises(GraceError, match=r"a\.webp': 50×40 pixels are too many .*save it as PNG"):
        read_pixels(path, 3, 8)
    assert read_pixels(put(tmp_path / "b.webp", encoded(noise(1, (50, 40)), "WEBP")), 3, 8).any()


def test_a_heavy_jpeg_is_decoded_at_half_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 89 megapixels and four colours took 1.1 GB: its coefficients beside its pixels."""
    image = Image.linear_gradient("L").convert("CMYK")
    path = put(tmp_path / "a.jpg", encoded(image, "JPEG", progressive=True))
    whole, half = read_pixels(path, 3, 64), read_pixels(path, 3, 200)
    monkeypatch.setattr("grace.data.decoding._HEAVY", 100)
    assert np.abs(read_pixels(path, 3, 64).astype(int) - whole).max() <= 2
    assert np.array_equal(read_pixels(path, 3, 200), half)


def test_an_image_is_gone_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory was counted as free while it was still held: two stood side by side."""
    seen: list[Image.Image] = []

    class Budget:
        @contextmanager
        def taken(self, _: int) -> Iterator[None]:
            yield
            with pytest.raises(ValueError, match="closed"):
                seen[0].load()

    monkeypatch.setattr("grace.data.decoding.BUDGET", Budget())
    with decoded(put(tmp_path / "a.png", noise(0)), 3) as (image, _):
        seen.append(image)


def growth(path: Path, num_threads: int, num_bytes: int | None = None) -> int:
    """Bytes by which a new process grows while its threads read one file each, with a budget."""
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from grace.data import decoding\n"
        "count, limit = int(sys.argv[2]), int(sys.argv[3])\n"
        "decoding.BUDGET.num_bytes = limit or decoding.BUDGET.num_bytes\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = used()\n"
        "with ThreadPoolExecutor(count) as pool:\n"
        "    read = lambda _: decoding.read_pixels(Path(sys.argv[1]), 3, 8)\n"
        "    list(pool.map(read, range(count)))\n"
        "print((used() - before) * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(num_threads), str(num_bytes or 0)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_turning_takes_the_memory_of_two_images(tmp_path: Path) -> None:
    """The file's own pixels stayed while the turned ones were converted: three images."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    image = Image.new("RGBA", (4000, 2500), (1, 2, 3, 100))
    path = put(tmp_path / "a.png", encoded(image, exif=exif))
    assert growth(path, 2, num_bytes=1) < 11 * 4000 * 2500


def test_the_limit_of_pixels_is_a_setting(tmp_path: Path) -> None:
    """There was no such setting."""
    path = put(tmp_path / "a.png", noise(0, (20, 10)))
    assert read_pixels(path, 3, 8, max_pixels=200).shape == (8, 8, 3)
    with pytest.raises(GraceError, match=r"a\.png': 20×10 pixels are too many.*data\.max_pixels"):
        read_pixels(path, 3, 8, max_pixels=199)
    assert "max_pixels" not in DataSettings().model_dump()


@pytest.mark.parametrize("size", [(0, 5), (2**31 - 1, 1), (50_000, 50_000), (10_000, 10_000)])
def test_headers_that_promise_too_much(tmp_path: Path, size: tuple[int, int]) -> None:
    assert outcome(put(tmp_path / "a.png", bomb(*size))) == "refused"


def test_images_wait_for_memory() -> None:
    """Four PNGs of 174 KB with 89 megapixels took 7 GB: threads decoded them at once."""
    budget = DecodingBudget(100)
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def large() -> None:
        with budget.taken(1000):  # More than the budget: alone.
            entered.set()
            leave.wait(5)
            order.append("large")

    def small() -> None:
        entered.wait(5)
        with budget.taken(1):
            order.append("small")

    threads = [threading.Thread(target=work) for work in (large, small)]
    for thread in threads:
        thread.start()
    entered.wait(5)
    leave.set()
    for thread in threads:
        thread.join(5)
    assert order == ["large", "small"]


def test_one_huge_image_among_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for all was made in the size of the first: 215 GB for 800 images."""
    paths = [put(tmp_path / f"{n}.png", noise(n, (64 if n == 0 else 4, 64))) for n in range(9)]
    monkeypatch.setattr("grace.data.reading.memory_bytes", lambda: 64 * 64 * 3 * 4)
    images, looks = decode_all(paths, 3, None)
    assert len(images) == 1
    assert len(looks) == 9
    for path in paths:
        put(path, noise(0, (64, 64)))
    with pytest.raises(GraceError, match=r"9 images of 64×64 pixels, as '.*0\.png' has"):
        decode_all(paths, 3, None)


def tiff_block(num_tags: int, size: int) -> bytes:
    """A block whose tags all name the same ``size`` bytes."""
    entries = [struct.pack("<HHLL", 1000 + n, 7, size, 8) for n in range(num_tags)]
    block = b"II*\0" + struct.pack("<LH", 8, num_tags) + b"".join(entries) + bytes(4)
    return block.ljust(size, b"\0")


def png_with(kind: bytes, content: bytes) -> bytes:
    whole = encoded(noise(0))
    chunk = struct.pack(">I", len(content)) + kind + content
    chunk += struct.pack(">I", zlib.crc32(kind + content))
    return whole[:33] + chunk + whole[33:]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_tags_that_name_one_block_thousands_of_times(tmp_path: Path, kind: str) -> None:
    """Tags of one megabyte in all took gigabytes: each was copied out of the same block."""
    block = tiff_block(5000, 60_000 if kind == "JPEG" else 400_000)
    data = block
    if kind == "PNG":
        data = png_with(b"eXIf", block)
    elif kind == "JPEG":
        segment = b"Exif\0\0" + block
        length = struct.pack(">H", len(segment) + 2)
        data = b"\xff\xd8\xff\xe1" + length + segment + encoded(noise(0), "JPEG")[2:]
    with pytest.raises(GraceError, match="again and again"):
        read_pixels(put(tmp_path / "a.png", data), 3, None)


def test_bytes_between_the_segments_of_an_image(tmp_path: Path) -> None:
    """Decoders skip them one by one: a gigabyte took minutes."""
    whole = encoded(noise(0), "JPEG")
    assert whole[2:4] == b"\xff\xe0"
    first, rest = whole[:20], whole[20:]
    assert read_pixels(put(tmp_path / "a.jpg", first + bytes(1000) + rest), 3, 8).shape == (8, 8, 3)
    for filler in (b"\0", b"\xff", b"\xff\0"):
        with pytest.raises(GraceError, match="no segment"):
            read_pixels(put(tmp_path / "b.jpg", first + 2**21 * filler + rest), 3, 8)
    with pytest.raises(GraceError, match="metadata is too large"):
        read_pixels(put(tmp_path / "c.jpg", first + 2**16 * b"\xff\xfe\0\2" + rest), 3, 8)


@pytest.mark.parametrize("kind", [b"abCd", b"IDAT"])
def test_empty_chunks_by_the_million(tmp_path: Path, kind: bytes) -> None:
    """Ten megabytes of them took seconds for one image, a gigabyte minutes."""
    chunk, whole = struct.pack(">I", 0) + kind + struct.pack(">I", zlib.crc32(kind)), noise(0)
    data = encoded(whole, "PNG")
    few, many = (data[:33] + count * chunk + data[33:] for count in (1000, 2**19))
    assert read_pixels(put(tmp_path / "a.png", few), 3, 8).shape == (8, 8, 3)
    with pytest.raises(GraceError, match="more than 524288 parts"):
        read_pixels(put(tmp_path / "b.png", many), 3, 8)


def test_progressive_images_of_thousands_of_scans(tmp_path: Path) -> None:
    """3,000 scans took 20 seconds for one image."""
    whole = encoded(Image.new("L", (1000, 1000), 100), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    start = time.process_time()
    with pytest.raises(GraceError, match=r"300\d scans are too many"):
        read_pixels(put(tmp_path / "a.jpg", whole[:-2] + 3000 * last + whole[-2:]), 3, None)
    assert time.process_time() - start < 1
    # What follows the image, such as a film, is none of its scans.
    film = put(tmp_path / "b.jpg", whole + 3000 * last)
    assert read_pixels(film, 1, 8).shape == (8, 8, 1)


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    """A pipe that replaced an image after the scan made a reader wait for ever."""
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("/dev/zero")
    (tmp_path / "c.png").symlink_to("c.png")
    (tmp_path / "d.png").symlink_to("nothing")
    (tmp_path / "e.png").mkdir()
    for name in "abcde":
        assert outcome(tmp_path / f"{name}.png") == "refused"


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
        found = files_below(tmp_path / "ant")
        assert len(found.images) == 2
        assert scan(tmp_path).class_names == ["ant"]
    finally:
        os.chdir(start)
        subprocess.run(["rm", "-rf", str(tmp_path / "ant")], check=True)


@pytest.mark.parametrize(
    "name", ["می\u200cخواهم", "क्\u200dष", "東京\u3000駅", "café\u00a0noir", "👩\u200d🚀"]
)
def test_names_that_languages_need(name: str) -> None:
    """They were refused, as if they had control characters."""
    assert class_name(name) == name


@pytest.mark.parametrize(
    "name", ["a\u200db", "\u202eabc", "ab\u2066", "\u200c", "\u3000", "a\ud800"]
)
def test_names_that_hide_something(name: str) -> None:
    with pytest.raises(GraceError):
        class_name(name)


def test_names_that_look_alike_are_twins() -> None:
    assert twins(["é\u200d", "é", "a b", "a\u00a0b"]) == [("é\u200d", "é"), ("a b", "a\u00a0b")]


def archive(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        fill(tar)
    return out.getvalue()


def member(name: str, **facts: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"there/{name}")
    for key, value in facts.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "info",
    [
        member("x", type=tarfile.LNKTYPE, linkname="there/x"),
        member("x", type=tarfile.SYMTYPE, linkname="x"),
        member("x", type=tarfile.FIFOTYPE),
        member("x", type=tarfile.CHRTYPE),
        member("x", type=tarfile.DIRTYPE),
        member("x", size=2**40),
        member("y"),
    ],
)
def test_archives_that_hold_themselves(tmp_path: Path, info: tarfile.TarInfo) -> None:
    """A hard link to itself ended in a RecursionError, and sizes had no limit."""
    path = put(tmp_path / "a.tar.gz", archive(lambda tar: tar.addfile(info)))
    with pytest.raises(GraceError, match=r"a\.tar\.gz'"):
        cifar._extract(path, tmp_path / "there", ["x"])
    assert not list((tmp_path / "there").iterdir())


def test_archives_of_everything(tmp_path: Path) -> None:
    """What is unpacked are the files that were asked for, and nothing is written elsewhere."""
    put(tmp_path / "outside", b"precious")
    unpacked = 0
    for number in range(80):
        draw = random.Random(f"archive {number}")  # noqa: S311 - not a secret
        place = tmp_path / "inside" / str(number) / "there"
        path = put(place.parent / "a.tar.gz", odd_archives.archive(draw))
        if number % 10 == 0:
            odd_archives.occupy(place, draw)
        try:
            cifar._extract(path, place, ["x", "y"])
        except GraceError as error:
            assert "a.tar.gz'" in str(error)  # noqa: PT017 - a result is right, too
            continue
        unpacked += 1
        assert sorted(own.name for own in place.iterdir()) == ["x", "y"]
        assert all(own.is_file() and not own.is_symlink() for own in place.iterdir())
    assert 10 < unpacked < 60
    assert (tmp_path / "outside").read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "outside"]


def test_archives_that_are_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood before the wanted members was unpacked without limit."""
    monkeypatch.setattr(cifar, "_MAX_ARCHIVE", 100_000)

    def fill(tar: tarfile.TarFile) -> None:
        tar.addfile(member("y", size=10**6), io.BytesIO(bytes(10**6)))
        tar.addfile(member("x", size=1), io.BytesIO(b"1"))

    path = put(tmp_path / "a.tar.gz", archive(fill))
    with pytest.raises(GraceError, match="there is too much in it"):
        cifar._extract(path, tmp_path / "there", ["x"])


def test_four_large_images_take_the_memory_of_one(tmp_path: Path) -> None:
    """Four of 20 megapixels took 2 GB."""
    path = put(tmp_path / "a.png", encoded(Image.new("RGBA", (5000, 4000), (1, 2, 3, 100))))
    assert growth(path, 4) < 10**9
