"""Connections to a SQLite file that is missing, removed or replaced: the same store works when it is back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asterism.store.protocol import PutRun
from asterism.store.sqlite import SqliteStore
from asterism.store.sqlite.connection import FileConnection
from asterism.store.store_errors import StoreMissing, StoreUnavailable
from tests.store.sqlite_fixtures import completed, filled, ids, in_the_writer, opened, run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


async def test_a_store_needs_a_folder_and_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match=r"there is no directory .*nowhere for the store fleet\.db; create it first"):
        await SqliteStore.open(tmp_path / "nowhere" / "fleet.db")
    with pytest.raises(StoreMissing, match="is a directory; a store is a file"):
        await SqliteStore.open(tmp_path)
    with pytest.raises(StoreMissing, match="there is no store"):
        await SqliteStore.open(tmp_path / "fleet.db", create=False)
    assert not os.listdir(tmp_path)


async def test_opening_waits_for_locks_in_every_statement(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that opens the file may hold any lock for a moment, and only the commits wait by themselves."""
    waits: dict[str, int] = {}

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            (waits[sql],) = super().execute("PRAGMA busy_timeout").fetchone()
            return super().execute(sql, *arguments)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Watched))
    connection = FileConnection(file, busy_timeout=5.0)
    connection.first_open(create=True)
    connection.close()
    assert {"BEGIN EXCLUSIVE", "PRAGMA journal_mode = WAL", "PRAGMA data_version"} <= waits.keys()
    assert set(waits.values()) == {5000}


async def test_a_moved_file_is_unavailable_until_it_is_back(file: Path) -> None:
    async with opened(file) as store:
        await store.commit([PutRun(run(0), None)])
        os.rename(file, file.with_name("elsewhere.db"))
        with pytest.raises(StoreUnavailable, match=r"fleet\.db was removed or replaced.*restore the file"):
            await store.commit([PutRun(run(1), None)])
        with pytest.raises(StoreUnavailable, match=r"fleet\.db was removed or replaced"):
            await store.run("run-00000")
        assert file.name not in os.listdir(file.parent)
        os.rename(file.with_name("elsewhere.db"), file)
        await store.commit([PutRun(run(2), None)])
        assert await ids(store) == ["run-00000", "run-00002"]
        assert await store.check() == []


async def test_a_commit_into_a_file_that_vanishes_under_it_is_not_acknowledged(file: Path) -> None:
    async with opened(file) as store:
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            await in_the_writer(store, lambda cursor: os.rename(file, file.with_name("elsewhere.db")))
        os.rename(file.with_name("elsewhere.db"), file)
        await store.commit([PutRun(run(0), None)])


async def test_an_empty_file_in_its_place_is_not_taken_for_a_new_store(file: Path) -> None:
    async with opened(file) as store:
        await store.commit([PutRun(run(0), None)])
        os.rename(file, file.with_name("elsewhere.db"))
        os.close(os.open(file, os.O_CREAT))
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"fleet\.db is empty; restore the file"):
                await store.commit([PutRun(run(1), None)])
        assert os.stat(file).st_size == 0
        os.replace(file.with_name("elsewhere.db"), file)
        with contextlib.suppress(StoreUnavailable):  # raised once more for the replacement
            await store.commit([PutRun(run(1), None)])
        await store.commit([PutRun(run(2), None)])
        assert {"run-00000", "run-00002"} <= set(await ids(store))


async def test_after_a_replacement_all_calls_use_the_new_file_and_both_files_are_intact(file: Path) -> None:
    backup, old = file.with_name("backup.db"), file.with_name("old.db")
    await filled(backup, 40)
    async with opened(file) as store:
        await store.commit([PutRun(run(number), None) for number in range(1000, 1200)])
        assert len(await ids(store)) == 200
        os.rename(file, old)
        os.rename(backup, file)
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            await store.commit([PutRun(completed(run(1000)), 1)])
        await store.commit([PutRun(run(50), None)])
        assert await ids(store) == [f"run-{number:05}" for number in (*range(40), 50)]
        assert await store.check() == []
    for path, number in ((file, 41), (old, 200)):
        async with opened(path) as store:
            assert len(await ids(store)) == number
            assert await store.check() == []


async def test_a_reader_finds_the_new_file_too(file: Path) -> None:
    backup = file.with_name("backup.db")
    await filled(backup, 3)
    async with opened(file) as store:
        assert await ids(store) == []
        os.replace(backup, file)
        async with asyncio.timeout(300):
            while True:
                try:
                    assert len(await ids(store)) == 3
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0)  # the writer switches first


async def test_a_log_that_belongs_to_the_old_file_is_never_read_with_the_new_one(file: Path) -> None:
    backup = file.with_name("backup.db")
    await filled(backup, 3)
    async with opened(file) as store:
        await store.commit([PutRun(run(number), None) for number in range(1000, 1200)])
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM runs").fetchone()  # prevents a checkpoint
            await store.commit([PutRun(run(1300), None)])
            os.rename(file, file.with_name("old.db"))
            os.rename(backup, file)
            with pytest.raises(StoreUnavailable, match=r"fleet\.db-wal beside it belongs to the old file"):
                await store.commit([PutRun(run(50), None)])
            reader.execute("ROLLBACK")
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            await store.commit([PutRun(run(50), None)])
        await store.commit([PutRun(run(50), None)])
        assert len(await ids(store)) == 4
        assert await store.check() == []
    async with opened(file.with_name("old.db")) as store:
        assert len(await ids(store)) == 201


COPYING = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    fcntl.lockf(index, fcntl.LOCK_EX, 1, 121)  # the lock of whoever copies the log
    print("copying", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def copying(store: Path) -> Iterator[None]:
    """Another process copies the log."""
    words = [sys.executable, "-c", COPYING, f"{store}-shm"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "copying\n"
        yield
        process.communicate()


async def test_a_log_that_somebody_else_copies_at_this_moment_is_not_removed(file: Path) -> None:
    """SQLite then says that 0 of 0 pages were copied, as it were."""
    backup = file.with_name("backup.db")
    await filled(backup, 3)
    async with opened(file) as store:
        await store.commit([PutRun(run(number), None) for number in range(1000, 1200)])
        with copying(file):
            os.rename(file, file.with_name("old.db"))
            os.rename(backup, file)
            with pytest.raises(StoreUnavailable, match=r"fleet\.db-wal beside it belongs to the old file"):
                await store.commit([PutRun(run(50), None)])
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            await store.commit([PutRun(run(50), None)])
    async with opened(file.with_name("old.db")) as store:
        assert len(await ids(store)) == 200


async def test_the_log_of_another_process_in_the_new_file_is_not_removed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has switched to the new file while this process left the old one."""
    backup, log = file.with_name("backup.db"), file.with_name(f"{file.name}-wal")
    await filled(backup, 3)
    checkpointed = FileConnection._checkpointed

    def meanwhile(self: FileConnection) -> bool:
        done = checkpointed(self)
        log.rename(log.with_name("old-wal"))
        log.write_bytes(b"the log of the new file")
        return done

    async with opened(file) as store:
        await store.commit([PutRun(run(1), None)])
        os.rename(file, file.with_name("old.db"))
        os.rename(backup, file)
        monkeypatch.setattr(FileConnection, "_checkpointed", meanwhile)
        monkeypatch.setattr(FileConnection, "_open", lambda self: None)
        with contextlib.suppress(StoreUnavailable, AttributeError):  # nothing is open
            await store.commit([PutRun(run(50), None)])
        assert log.read_bytes() == b"the log of the new file"
        log.unlink()
