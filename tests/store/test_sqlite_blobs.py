"""Blobs as files beside a SQLite store."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.store.protocol import PutRun
from asterism.store.sqlite.blob_files import Blobs
from asterism.store.store_errors import StoreCorrupt, StoreFull, StoreUnavailable, StoreUnwritable
from tests.store.sqlite_fixtures import completed, opened, run

DATA = b"a large thing"
NAME = hashlib.sha256(DATA).hexdigest()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db.blobs"


@pytest.fixture
def blobs(folder: Path, clock: Clock) -> Blobs:
    return Blobs(folder, clock)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))


async def test_blobs_are_files_beside_the_store_named_by_their_hash(tmp_path: Path, folder: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        assert await store.put_blob(DATA) == NAME
        assert await store.put_blob(DATA) == NAME
        assert files(folder) == [f"{NAME[:2]}/{NAME}"]
        assert await store.blob(NAME) == DATA


@pytest.mark.parametrize("name", ["../fleet.db", "0" * 64, "", "A" * 64, f"{NAME}/../{NAME}", "\0" * 64])
def test_an_unknown_or_invalid_name_has_no_blob(blobs: Blobs, name: str) -> None:
    blobs.keep(DATA)
    assert blobs.read(name) is None


def test_a_file_appears_complete_or_not_at_all(blobs: Blobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        assert not [name for name in files(folder) if not name.split("/")[1].startswith(".")]
        raise OSError(errno.ENOSPC, "No space left on device")

    blobs.keep(b"another")  # so that the folders exist
    os.unlink(folder / files(folder)[0])
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreFull, match=r"no space left for .*fleet\.db\.blobs"):
        blobs.keep(b"another")
    assert files(folder) == []


@pytest.mark.parametrize(
    ("code", "error"), [(errno.EROFS, StoreUnwritable), (errno.EACCES, StoreUnwritable), (errno.EIO, StoreUnavailable)]
)
def test_errors_of_the_disk_become_store_errors(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(error, match=r"fleet\.db\.blobs"):
        blobs.keep(DATA)


def test_the_folder_is_made_durable_too(blobs: Blobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync: Callable[[int], None] = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}") if os.path.exists("/proc/self/fd") else str(handle))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    blobs.keep(DATA)
    assert len(synced) == 4  # the new folders, the file, and its folder
    if os.path.exists("/proc/self/fd"):
        assert [Path(path) for path in (synced[0], synced[1], synced[3])] == [
            folder.parent, folder, folder / NAME[:2]
        ]  # fmt: skip


def test_a_damaged_blob_is_corrupt(blobs: Blobs, folder: Path) -> None:
    blobs.keep(DATA)
    (folder / NAME[:2] / NAME).write_bytes(b"another thing")
    with pytest.raises(StoreCorrupt, match=f"{NAME} is damaged"):
        blobs.read(NAME)


def test_a_blob_that_cannot_be_read_is_unavailable(blobs: Blobs, folder: Path) -> None:
    (folder / NAME[:2] / NAME).mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match=f"{NAME} is out of reach"):
        blobs.read(NAME)


async def test_an_unreferenced_blob_is_removed_after_a_while(tmp_path: Path, folder: Path, clock: Clock) -> None:
    async with opened(tmp_path / "fleet.db", clock=clock, blob_age=3600.0) as store:
        used = await store.put_blob(b"used")
        output = await store.put_blob(b"an output")
        await store.put_blob(DATA)
        done = completed(run(1)).changed(output={"$blob": output, "size": 9}, ended_at=clock.now)
        await store.commit([PutRun(run(2).changed(input={"$blob": used, "size": 4}), None), PutRun(done, None)])
        clock.now += 3599.0
        await store.prune(clock.now, 100)
        await store.prune(clock.now, 100)
        assert await store.blob(NAME) == DATA
        assert await store.blob(output) == b"an output"
        clock.now += 2.0
        await store.prune(clock.now, 100)
        assert await store.blob(NAME) is None
        assert await store.blob(output) is None
        assert await store.blob(used) == b"used"
        assert await store.check() == []


def test_a_blob_that_is_put_again_at_the_last_moment_stays(
    blobs: Blobs, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.keep(DATA)
    rename = Path.rename

    def kept_first(self: Path, target: Path) -> Path:
        blobs.keep(DATA)
        return rename(self, target)

    clock.now += 100.0
    monkeypatch.setattr(Path, "rename", kept_first)
    blobs.remove(NAME, kept_before=clock.now)
    assert files(folder) == [f"{NAME[:2]}/{NAME}"]


def test_a_blob_that_is_put_again_during_its_removal_is_written_again(
    blobs: Blobs, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.keep(DATA)
    clock.now += 100.0
    unlink = Path.unlink

    def kept_first(self: Path, missing_ok: bool = False) -> None:
        monkeypatch.setattr(Path, "unlink", unlink)
        assert blobs.read(NAME) == DATA
        blobs.keep(DATA)
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", kept_first)
    blobs.remove(NAME, kept_before=clock.now)
    assert files(folder) == [f"{NAME[:2]}/{NAME}"]
    assert blobs.read(NAME) == DATA


def test_a_blob_left_by_a_killed_remover_is_read_and_removed_later(blobs: Blobs, folder: Path, clock: Clock) -> None:
    blobs.keep(DATA)
    path = folder / NAME[:2] / NAME
    path.rename(path.with_suffix(".going"))
    assert blobs.read(NAME) == DATA
    assert list(blobs.names(clock.now)) == []
    clock.now += 1.0
    assert list(blobs.names(clock.now)) == [NAME]
    blobs.remove(NAME, clock.now)
    assert files(folder) == []


def test_files_left_by_a_killed_writer_are_removed(blobs: Blobs, folder: Path, clock: Clock) -> None:
    blobs.keep(DATA)
    left = folder / NAME[:2] / f".{NAME}.0badcafe"
    left.write_bytes(b"half of it")
    os.utime(left, (clock.now - 1.0, clock.now - 1.0))
    assert list(blobs.names()) == [NAME]
    blobs.sweep(clock.now - 2.0)
    assert len(files(folder)) == 2
    blobs.sweep(clock.now)
    assert files(folder) == [f"{NAME[:2]}/{NAME}"]


async def test_a_backup_is_complete_though_runs_are_pruned_meanwhile(tmp_path: Path, clock: Clock) -> None:
    """A dump shows the tables and the blobs as they were when it began."""
    async with opened(tmp_path / "fleet.db", clock=clock, blob_age=3600.0) as store:
        output = await store.put_blob(DATA)
        done = completed(run(1)).changed(output={"$blob": output, "size": len(DATA)}, ended_at=clock.now)
        await store.commit([PutRun(done, None)])
        clock.now += 7200.0
        lines = []
        async for line in store.dump():
            lines.append(line)
            if "run" in line:
                assert await store.prune(clock.now, 100) == 1
                assert await store.prune(clock.now, 100) == 0
        assert [line for line in lines if "run" in line]
        assert [line for line in lines if "blob" in line]
        clock.now += 3601.0
        await store.prune(clock.now, 100)
        assert await store.blob(output) is None


def test_sparing_a_missing_or_foreign_blob_does_nothing(
    blobs: Blobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.keep(DATA)

    def refused(*args: Any) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    blobs.spare({NAME, "0" * 64})
    monkeypatch.setattr(os, "utime", refused)
    blobs.spare({NAME})
    assert blobs.read(NAME) == DATA
