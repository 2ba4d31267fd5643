"""A store file that becomes read-only for a while: devices and journals wait, and no work is repeated."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from asterism.base import expressions
from asterism.base.clock import BootClock
from asterism.core.run.work import Workflow
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import OwnershipLost, insert_plan, load
from asterism.durable.journal_writer import JournalWriter
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.store.sqlite import SqliteStore
from asterism.store.sqlite.connection import FileConnection
from asterism.store.store_errors import StoreError, StoreReadOnly, StoreUnwritable
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, chain, task


class Rights:
    """Refuse writes to the files of all stores. ``refused`` is called for each refused write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given = True
        self.met = 0
        self._wanted: list[tuple[int, asyncio.Event, asyncio.AbstractEventLoop]] = []
        prepare, fault = FileConnection._prepare, FileConnection.fault

        def prepared(link: FileConnection, connection: sqlite3.Connection, new: bool) -> None:
            prepare(link, connection, new)
            if not self.given:
                connection.execute("PRAGMA query_only = 1")

        def noted(link: FileConnection, error: Exception) -> StoreError:
            mapped = fault(link, error)
            if isinstance(mapped, StoreUnwritable | StoreReadOnly):
                self._refused()
            return mapped

        monkeypatch.setattr(FileConnection, "_prepare", prepared)
        monkeypatch.setattr(FileConnection, "fault", noted)

    def take(self, store: SqliteStore) -> None:
        self.given, self.met = False, 0
        with store._writer._writing:
            store._connection.close()  # the next connection is read-only

    async def refused(self, times: int, unless: asyncio.Task[Any]) -> None:
        """Until so much could not be written, or the other has ended, which it should not."""
        event = asyncio.Event()
        self._wanted.append((times, event, asyncio.get_running_loop()))
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait([waiting, unless], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert not unless.done()

    def _refused(self) -> None:
        self.met += 1
        for times, event, loop in self._wanted:
            if self.met >= times:
                loop.call_soon_threadsafe(event.set)


@pytest.fixture
def rights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rights:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    durable_work.reset()
    return Rights(monkeypatch)


def no_errors(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_device_writes_its_result_when_the_store_is_writable_again(
    rights: Rights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        store = fleet.store
        assert isinstance(store, SqliteStore)
        device = DeviceAgent(fleet, "kitchen", heartbeat=0.1, heartbeat_timeout=60.0, monitor_every=0.05)
        living = asyncio.create_task(device.run())
        await device.joined.wait()
        run = await fleet.create(Workflow("work", call="tests.durable.durable_work:wait"), {"name": "slow"})
        await durable_work.gate("slow begun").wait()
        rights.take(store)
        durable_work.gate("slow").set()
        await rights.refused(5, living)
        rights.given = True
        ended = await fleet.wait(run.id)
        assert (str(ended.status), ended.output, ended.epoch) == ("completed", "slow done", 1)
        assert DONE["slow"] == 1
        living.cancel()
        await asyncio.wait([living])
    assert no_errors(caplog)


async def test_a_journal_waits_until_the_store_is_writable_again(
    rights: Rights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await SqliteStore.open(tmp_path / "fleet.db")
    lost: list[OwnershipLost] = []
    journal = JournalWriter(store, BootClock(), random.Random(1), await insert_plan(store, chain("a")), lost.append)
    rights.take(store)
    journal.plan.note(1.0, "said", None, "something")
    written = asyncio.create_task(journal.commit())
    await rights.refused(2, written)
    rights.given = True
    await written
    assert lost == []
    assert "something" in [entry.why for entry in (await load(store, "nightly", expressions)).plan.story()]
    await journal.close()
    await store.close()
    assert no_errors(caplog)
    assert "waits for the store" in caplog.text
    assert "change the permissions of the file and its directory" in caplog.text


async def test_a_plan_continues_when_the_store_is_writable_again(
    rights: Rights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        assert isinstance(fleet.store, SqliteStore)
        plan = chain("a")
        plan.add(task("slow", "wait"), "a")
        plan.add(task("last"), "slow")
        running = asyncio.create_task(DurableOrchestrator(fleet, local=1).run(plan))
        await durable_work.gate("slow begun").wait()
        rights.take(fleet.store)
        durable_work.gate("slow").set()
        await rights.refused(3, running)
        rights.given = True
        assert (await running).state == "completed"
        assert dict(DONE) == {"a": 1, "slow": 1, "last": 1}
        assert await fleet.store.check() == []
    assert no_errors(caplog)


async def test_a_read_only_store_is_not_opened(tmp_path: Path) -> None:
    async def scene() -> None:
        store = await SqliteStore.open(tmp_path / "fleet.db")
        await store.close()

    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asterism.store.sqlite.schema.migrate", refuse)
        with pytest.raises(StoreReadOnly, match="no permission to write"):
            await scene()
