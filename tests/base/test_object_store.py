"""Objects named after their content, and what may stand in their place."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from grace.base.atomic import ObjectStore, Ref
from grace.base.errors import DamagedError

# The examples of FIPS 180-4.
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model" / "objects"


@pytest.fixture
def store(folder: Path) -> ObjectStore:
    return ObjectStore(folder)


def test_put_and_get(store: ObjectStore, folder: Path) -> None:
    assert store.names() == set()
    for data, sha256 in ((b"abc", ABC), (b"", EMPTY)):
        ref = store.put(data)
        assert ref == Ref(sha256=sha256, bytes=len(data))
        assert store.get(ref, "it") == data
    path = folder / f"{ABC}.safetensors"
    assert store.names() == {ABC, EMPTY}
    assert path.read_bytes() == b"abc"
    before = path.stat().st_ino
    ref = store.put(b"abc")
    assert path.stat().st_ino == before, "what is there is not written again"
    assert store.start(ref, "it", 2) == b"ab"
    with pytest.raises(DamagedError, match="3 bytes instead of 4"):
        store.get(Ref(sha256=ABC, bytes=4), "it")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("absent", "^backbone 2 is missing$"),
        ("link", "^backbone 2 is damaged: it is a link"),
        ("pipe", "^backbone 2 is damaged: it is no regular file$"),
        ("short", "^backbone 2 is damaged: it has 2 bytes instead of 3$"),
        ("other", "^backbone 2 is damaged: its content does not match its SHA-256$"),
    ],
)
def test_what_is_not_what_was_put_is_refused_and_replaced(
    store: ObjectStore, folder: Path, kind: str, says: str
) -> None:
    ref, path, other = store.put(b"abc"), folder / f"{ABC}.safetensors", folder / "abd"
    path.unlink()
    match kind:
        case "link":
            # It has three bytes itself, as what it leads to has.
            other.write_bytes(b"abd")
            path.symlink_to("abd")
        case "pipe":
            os.mkfifo(path)
        case "short" | "other":
            path.write_bytes({"short": b"ab", "other": b"abd"}[kind])
    with pytest.raises(DamagedError, match=says):
        store.get(ref, "backbone 2")
    assert store.get(store.put(b"abc"), "it") == b"abc"
    assert kind != "link" or other.read_bytes() == b"abd"


def test_a_linked_folder_is_refused(tmp_path: Path, store: ObjectStore, folder: Path) -> None:
    ref, link = store.put(b"abc"), tmp_path / "link"
    link.symlink_to(folder, target_is_directory=True)
    linked = ObjectStore(link)
    for use in (
        lambda: linked.get(ref, "it"),
        lambda: linked.start(ref, "it", 1),
        lambda: linked.put(b"new"),
        lambda: linked.names(),
        lambda: linked.keep_only([]),
    ):
        with pytest.raises(DamagedError, match="link is damaged: it is a link"):
            use()
    assert store.names() == {ABC}


def test_forged_references() -> None:
    forged = [
        ABC.upper(),
        ABC[:-1],
        ABC + "0",
        ABC[:-1] + "\n",
        f"../{ABC[3:]}",
        ABC[:-1] + "٣",
        None,
    ]
    for given in [(sha256, 1) for sha256 in forged] + [(ABC, num) for num in (-1, True, 1.0, "1")]:
        with pytest.raises(ValidationError):
            Ref.model_validate(dict(zip(("sha256", "bytes"), given, strict=True)))


def test_keep_only(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    ObjectStore(tmp_path / "absent").keep_only([ABC])
    for data in (b"abc", b"", b"1", b"2"):
        store.put(data)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder / f"{'0' * 64}.safetensors").symlink_to(victim)
    (folder / f".grace-unfinished-{'0' * 32}").write_bytes(b"ab")
    others = {"notes.txt", f"{'2' * 64}.json", f"{'g' * 64}.safetensors"}
    for name in others:
        (folder / name).touch()
    (folder / f"{'1' * 64}.safetensors").mkdir()
    store.keep_only(iter([ABC, EMPTY, "f" * 64]))
    assert store.names() == {ABC, EMPTY}
    kept = {f"{name}.safetensors" for name in (ABC, EMPTY, "1" * 64)}
    assert {path.name for path in folder.iterdir()} == kept | others
    assert victim.read_bytes() == b"precious"


def test_folders_are_flushed(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("os.fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    for change, places in (
        (lambda: store.put(b"abc"), [folder, folder.parent]),
        (lambda: store.put(b"abc"), [folder]),
        (lambda: store.keep_only([]), [folder]),
    ):
        flushed.clear()
        change()
        assert {place.stat().st_ino for place in places} <= set(flushed)
