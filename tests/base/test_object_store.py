"""Objects named after their content, and what may stand in their place."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from grace.base.atomic import ObjectStore, Ref
from grace.base.errors import DamagedError

# The examples of FIPS 180-4.
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def ref(sha256: str, num_bytes: int) -> Ref:
    return Ref(sha256=sha256, bytes=num_bytes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model" / "objects"


@pytest.fixture
def store(folder: Path) -> ObjectStore:
    return ObjectStore(folder)


def test_put_and_get(store: ObjectStore, folder: Path) -> None:
    assert store.names() == set()
    assert store.put(b"abc") == ref(ABC, 3)
    assert store.put(b"") == ref(EMPTY, 0)
    assert store.get(ref(ABC, 3), "it") == b"abc"
    assert store.get(ref(EMPTY, 0), "it") == b""
    assert store.names() == {ABC, EMPTY}
    assert (folder / f"{ABC}.safetensors").read_bytes() == b"abc"
    assert len(list(folder.iterdir())) == 2


def test_what_is_there_is_not_written_again(store: ObjectStore, folder: Path) -> None:
    store.put(b"abc")
    path = folder / f"{ABC}.safetensors"
    before = path.stat().st_ino
    store.put(b"abc")
    assert path.stat().st_ino == before


@pytest.mark.parametrize("kind", ["short", "link"])
def test_what_is_there_but_cannot_be_it_is_replaced(
    store: ObjectStore, folder: Path, kind: str
) -> None:
    folder.mkdir(parents=True)
    path, other = folder / f"{ABC}.safetensors", folder / "abd"
    other.write_bytes(b"abd")
    # The link has three bytes itself, as what it leads to has.
    path.symlink_to("abd") if kind == "link" else path.write_bytes(b"ab")
    assert store.get(store.put(b"abc"), "it") == b"abc"
    assert other.read_bytes() == b"abd"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("absent", "^backbone 2 is missing$"),
        ("link", "^backbone 2 is damaged: it is a link"),
        ("pipe", "^backbone 2 is damaged: it is no regular file$"),
        ("folder", "^backbone 2 is damaged: it is no regular file$"),
        ("short", "^backbone 2 is damaged: it has 2 bytes instead of 3$"),
        ("long", "^backbone 2 is damaged: it has 4 bytes instead of 3$"),
        ("other", "^backbone 2 is damaged: its content does not match its SHA-256$"),
    ],
)
def test_objects_that_are_not_what_was_put(
    store: ObjectStore, folder: Path, kind: str, says: str
) -> None:
    ref = store.put(b"abc")
    path = folder / f"{ABC}.safetensors"
    path.unlink()
    match kind:
        case "link":
            (folder / "real").write_bytes(b"abc")
            path.symlink_to(folder / "real")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "short" | "long" | "other":
            path.write_bytes({"short": b"ab", "long": b"abcd", "other": b"abd"}[kind])
    with pytest.raises(DamagedError, match=says):
        store.get(ref, "backbone 2")


def test_a_reference_says_the_true_size(store: ObjectStore) -> None:
    store.put(b"abc")
    with pytest.raises(DamagedError, match="3 bytes instead of 4"):
        store.get(ref(ABC, 4), "it")


def test_a_linked_folder_is_refused(tmp_path: Path, store: ObjectStore, folder: Path) -> None:
    ref = store.put(b"abc")
    link = tmp_path / "link"
    link.symlink_to(folder, target_is_directory=True)
    linked = ObjectStore(link)
    for use in (
        lambda: linked.get(ref, "it"),
        lambda: linked.put(b"new"),
        lambda: linked.names(),
        lambda: linked.keep_only([]),
    ):
        with pytest.raises(DamagedError, match="link is damaged: it is a link"):
            use()
    assert store.names() == {ABC}


@pytest.mark.parametrize(
    ("sha256", "num_bytes"),
    [
        (ABC.upper(), 1),
        (ABC[:-1], 1),
        (ABC + "0", 1),
        (ABC[:-1] + "\n", 1),
        (f"../{ABC[3:]}", 1),
        (ABC[:-1] + "٣", 1),
        (None, 1),
        (ABC, -1),
        (ABC, True),
        (ABC, 1.0),
        (ABC, "1"),
    ],
)
def test_forged_references(sha256: str, num_bytes: int) -> None:
    with pytest.raises(ValidationError):
        ref(sha256, num_bytes)


def test_references_are_checked_and_compared_by_value() -> None:
    assert ref(ABC, 0) == ref(ABC, 0) != ref(EMPTY, 0)
    assert len({ref(ABC, 0), ref(ABC, 0), ref(EMPTY, 0)}) == 2


def test_keep_only(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    ObjectStore(tmp_path / "absent").keep_only([ABC])
    for data in (b"abc", b"", b"1", b"2"):
        store.put(data)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder / f"{'0' * 64}.safetensors").symlink_to(victim)
    (folder / f".grace-unfinished-{'0' * 32}").write_bytes(b"ab")
    (folder / "notes.txt").write_text("not ours")
    store.keep_only(iter([ABC, EMPTY, "f" * 64]))
    assert store.names() == {ABC, EMPTY}
    assert {path.name for path in folder.iterdir()} == {
        f"{ABC}.safetensors",
        f"{EMPTY}.safetensors",
        "notes.txt",
    }
    assert victim.read_bytes() == b"precious"


def test_names_of_other_things_are_no_objects(store: ObjectStore, folder: Path) -> None:
    store.put(b"abc")
    (folder / f"{'1' * 64}.safetensors").mkdir()
    (folder / f"{'2' * 64}.json").touch()
    (folder / f"{'g' * 64}.safetensors").touch()
    assert store.names() == {ABC}


def test_a_killed_put_leaves_no_object(store: ObjectStore, folder: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from grace.base.atomic import ObjectStore\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "ObjectStore(Path(sys.argv[1])).put(b'abc')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)])
    assert done.returncode == -signal.SIGKILL
    assert store.names() == set()
    assert len(list(folder.iterdir())) == 1
    store.keep_only([])
    assert list(folder.iterdir()) == []


def test_folders_are_flushed(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("os.fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))

    def flushes(place: Path) -> bool:
        return place.stat().st_ino in flushed

    store.put(b"abc")
    assert flushes(folder)
    assert flushes(folder.parent)
    flushed.clear()
    store.put(b"abc")
    assert flushes(folder)
    flushed.clear()
    store.keep_only([])
    assert flushes(folder)


def test_large_objects_keep_their_hash(store: ObjectStore) -> None:
    data = bytes(range(256)) * 4096
    ref = store.put(data)
    assert ref == Ref(sha256=hashlib.sha256(data).hexdigest(), bytes=2**20)
    assert store.get(ref, "it") == data
