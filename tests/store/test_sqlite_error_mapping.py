"""Errors of SQLite and the disk: each fault has its own error, with advice, and the store works again after it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.core.run import transitions
from asterism.store.protocol import PutRegister, PutRun, PutSession, Query, TakeRequest
from asterism.store.sqlite import SqliteStore, error_mapping, group_commit
from asterism.store.sqlite.connection import FileConnection
from asterism.store.store_errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnwritable,
)
from tests.store.sqlite_fixtures import (
    KITCHEN,
    ME,
    filled,
    held_up,
    ids,
    in_the_writer,
    opened,
    run,
    unprivileged,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


# -- full --------------------------------------------------------------------------------------------------------------


async def test_a_full_disk_fails_the_whole_group_and_free_space_helps(file: Path) -> None:
    async with opened(file) as store:
        await store.commit([PutRun(run(0), None)])

        def fill(cursor: sqlite3.Cursor) -> None:
            (pages,) = cursor.execute("PRAGMA page_count").fetchone()
            cursor.execute(f"PRAGMA max_page_count = {pages + 1}")

        await in_the_writer(store, fill)
        async with held_up(store):
            large = run(1).changed(input={"text": "x" * 100_000})
            tasks = [asyncio.create_task(store.commit([PutRun(new, None)])) for new in (run(2), large, run(3))]
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert type(error) is StoreFull
            assert str(file) in str(error)
            assert "free space" in str(error)
        with pytest.raises(StoreFull):
            await store.commit([PutRun(large, None)])
        assert await ids(store) == ["run-00000"]
        await in_the_writer(store, lambda cursor: cursor.execute("PRAGMA max_page_count = 1000000"))
        await store.commit([PutRun(large, None)])
        assert await ids(store) == ["run-00000", "run-00001"]


def test_an_error_while_writing_on_a_full_disk_is_store_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert type(error_mapping.store_error(error, file, 5.0)) is StoreUnavailable
    usage = shutil.disk_usage(file.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    assert type(error_mapping.store_error(error, file, 5.0)) is StoreFull


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY_RECOVERY, StoreBusy),
        (sqlite3.SQLITE_LOCKED, StoreBusy),
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_READONLY_DIRECTORY, StoreReadOnly),
        (sqlite3.SQLITE_READONLY_DBMOVED, StoreUnavailable),
        (sqlite3.SQLITE_PERM, StoreReadOnly),
        (sqlite3.SQLITE_CANTOPEN, StoreUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, StoreUnavailable),
        (sqlite3.SQLITE_CORRUPT_INDEX, StoreCorrupt),
        (sqlite3.SQLITE_NOTADB, StoreCorrupt),
        (sqlite3.SQLITE_ERROR, StoreCorrupt),
        (sqlite3.SQLITE_NOMEM, StoreUnavailable),
        (None, StoreCorrupt),
    ],
)
def test_each_code_of_sqlite_has_its_store_error(file: Path, code: int | None, expected: type[StoreError]) -> None:
    error = sqlite3.OperationalError("as SQLite says it")
    if code is not None:
        error.sqlite_errorcode = code
    mapped = error_mapping.store_error(error, file, 5.0)
    assert type(mapped) is expected
    assert str(file) in str(mapped)


def test_an_error_of_the_operating_system_is_passed_on(file: Path) -> None:
    mapped = error_mapping.store_error(PermissionError(13, "Permission denied"), file, 5.0)
    assert type(mapped) is StoreUnavailable
    assert "Permission denied" in str(mapped)
    assert error_mapping.store_error(mapped, file, 5.0) is mapped


def test_a_connection_that_cannot_roll_back_is_closed(file: Path) -> None:
    link = FileConnection(file, 5.0)
    link.first_open(create=True)
    link.close()
    closed: list[bool] = []

    class Broken:
        in_transaction = True

        def execute(self, statement: str) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        def close(self) -> None:
            closed.append(True)

    link._connection = Broken()  # type: ignore[assignment]
    link.rollback()
    assert closed == [True]
    assert link.ready().execute("SELECT count(*) FROM runs").fetchone() == (0,)
    link.close()


# -- read-only ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter: pytest's own are for this user alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def test_a_file_that_may_not_be_written_is_read_only(public_folder: Path) -> None:
    file = public_folder / "fleet.db"
    asyncio.run(filled(file, 1))
    file.chmod(0o444)
    with (
        unprivileged(),
        pytest.raises(StoreReadOnly, match=r"no permission to write .*fleet\.db; change the permissions"),
    ):
        asyncio.run(filled(file, 1))


def test_a_folder_that_may_not_be_written_makes_its_store_read_only(public_folder: Path) -> None:
    file = public_folder / "fleet.db"
    with unprivileged():
        asyncio.run(filled(file, 1))
    file.chmod(0o666)
    public_folder.chmod(0o555)
    with unprivileged():
        with pytest.raises(StoreReadOnly, match="and its directory"):
            asyncio.run(filled(file, 1))
        with pytest.raises(StoreReadOnly, match=r"there is no file .*other\.db, and it cannot be created") as caught:
            asyncio.run(filled(public_folder / "other.db", 1))
        assert "can be read" not in str(caught.value)


def test_a_file_that_cannot_be_created_for_another_reason_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match=r"there is no file .* and it cannot be created: File name too long"):
        asyncio.run(filled(tmp_path / ("x" * 300), 1))


async def test_a_store_that_becomes_read_only_can_still_be_read(file: Path) -> None:
    async with opened(file) as store:
        await store.commit([PutRun(run(0), None)])
        await in_the_writer(store, lambda cursor: cursor.connection.execute("PRAGMA query_only = 1") and None)
        with pytest.raises(StoreUnwritable, match=r"no permission to write .*fleet\.db; change the permissions"):
            await store.commit([PutRun(run(1), None)])
        assert await ids(store) == ["run-00000"]
        await store.commit([PutRun(run(1), None)])  # over another connection, which may write
        assert len(await ids(store)) == 2


# -- locked ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(file: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other
        if other.in_transaction:
            other.execute("ROLLBACK")


async def test_a_file_that_is_locked_for_too_long_is_busy_and_can_be_read(file: Path) -> None:
    async with opened(file, busy_timeout=0.02) as store:
        await store.commit([PutRun(run(0), None)])
        with locked(file):
            with pytest.raises(StoreBusy, match=r"another process locked .*fleet\.db for more than 0\.02 s"):
                await store.commit([PutRun(run(1), None)])
            with pytest.raises(StoreBusy, match="nothing was written"):
                await store.commit([PutRun(run(1), None), PutRun(run(2), None)])
            assert await ids(store) == ["run-00000"]
        await store.commit([PutRun(run(1), None)])
        assert await ids(store) == ["run-00000", "run-00001"]


async def test_a_commit_waits_for_the_lock_of_another_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    met = asyncio.Event()
    sleep = time.sleep

    def noticed(seconds: float) -> None:
        loop.call_soon_threadsafe(met.set)
        sleep(seconds)

    monkeypatch.setattr(group_commit.time, "sleep", noticed)
    async with opened(file, busy_timeout=60.0) as store:
        for writes in ([PutRun(run(0), None)], [PutRun(run(1), None), PutRun(run(2), None)]):
            met.clear()
            with locked(file):
                task = asyncio.create_task(store.commit(writes))
                await met.wait()
                assert not task.done()
            await task
        assert len(await ids(store)) == 3


# -- damaged -----------------------------------------------------------------------------------------------------------


def damage(file: Path, start: int, end: int | None = None) -> None:
    content = file.read_bytes()
    end = len(content) if end is None else end
    file.write_bytes(content[:start] + bytes((7 * at + 13) % 251 for at in range(start, end)) + content[end:])


@pytest.mark.parametrize(
    "content", [b"just a text, and no database at all\n" * 100, b"SQLite format 3\0" + b"?" * 5000]
)
def test_a_file_that_is_not_a_database_is_corrupt_and_left_alone(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"fleet\.db is damaged, or not a store.*asterism store check.*restore"):
        asyncio.run(filled(file, 1))
    assert file.read_bytes() == content
    assert os.listdir(file.parent) == ["fleet.db"]


def test_a_file_whose_header_is_damaged_is_corrupt(file: Path) -> None:
    asyncio.run(filled(file, 10))
    damage(file, 0, 100)
    with pytest.raises(StoreCorrupt, match=r"fleet\.db"):
        asyncio.run(filled(file, 1))


def test_a_file_that_was_cut_off_is_corrupt(file: Path) -> None:
    asyncio.run(filled(file, 1000))
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StoreCorrupt, match=r"fleet\.db is damaged.*asterism store check"):
        asyncio.run(filled(file, 1))


async def test_damage_further_into_a_file_is_corrupt_when_it_is_read(file: Path) -> None:
    await filled(file, 1000)
    damage(file, 40 * 4096)  # behind the tables of the schema
    async with opened(file) as store:
        [first, *_] = await store.check()
        assert first.startswith("the file: ")
        with pytest.raises(StoreCorrupt, match=r"fleet\.db is damaged.*asterism store check"):
            await store.find(Query())
        with pytest.raises(StoreCorrupt, match=r"fleet\.db is damaged"):
            await store.commit([PutRun(run(number), None) for number in range(1000, 2000)])


async def test_a_record_that_cannot_be_read_is_named_and_blocks_no_other_work(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(file) as store:
        await store.commit([PutSession(KITCHEN, None), PutRun(run(1), None), PutRun(run(2), None)])
        await in_the_writer(
            store, lambda cursor: cursor.execute("UPDATE runs SET state = '{' WHERE id = 'run-00001'") and None
        )
        with pytest.raises(StoreCorrupt, match=r"fleet\.db is damaged.*run run-00001 cannot be read"):
            await store.run("run-00001")
        with caplog.at_level(logging.ERROR):
            taken = await store.take(
                TakeRequest("kitchen", frozenset(), 1000.0, 5),
                lambda offered: transitions.take(offered, ME, 1000.0),
            )
        assert [taken_run.id for taken_run in taken] == ["run-00002"]
        assert "run run-00001 cannot be read" in caplog.text
        [problem] = await store.check()
        assert "run run-00001 cannot be read" in problem


async def test_a_record_whose_name_is_the_path_of_the_store_gets_the_advice_too(file: Path) -> None:
    async with opened(file) as store:
        await store.commit([PutRegister(str(file), 1, None)])
        await in_the_writer(store, lambda cursor: cursor.execute("UPDATE registers SET value = '{'") and None)
        with pytest.raises(StoreCorrupt, match=r"fleet\.db is damaged.*cannot be read.*asterism store check"):
            await store.register(str(file))


async def test_invalid_text_is_corrupt(file: Path) -> None:
    async with opened(file) as store:
        await store.commit([PutRun(run(1), None)])
        await in_the_writer(
            store, lambda cursor: cursor.execute("UPDATE runs SET device = CAST(x'ff80' AS TEXT)") and None
        )
        with pytest.raises(StoreCorrupt, match=r"fleet\.db"):
            await store.run("run-00001")


@pytest.fixture
def empty(file: Path) -> Path:
    file.touch()
    return file


async def test_an_empty_file_is_waited_for_while_another_process_creates_the_store(empty: Path) -> None:
    looking = asyncio.create_task(SqliteStore.open(empty, create=False, busy_timeout=60.0))
    done, _ = await asyncio.wait([looking], timeout=0.1)
    assert not done
    async with opened(empty) as made:
        await made.commit([PutRun(run(0), None)])
        store = await looking
        assert await ids(store) == await ids(made)
        await store.close()


async def test_a_file_that_stays_empty_is_damaged(empty: Path) -> None:
    with pytest.raises(StoreCorrupt, match="is empty"):
        await SqliteStore.open(empty, create=False, busy_timeout=0.01)
