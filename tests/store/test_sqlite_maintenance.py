"""Maintenance in SQLite: the integrity check, and the dump."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Progress
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Notice, ProgressReport, PutRegister, PutRun, PutSession, Query
from asterism.store.sqlite import SqliteStore, maintenance
from asterism.store.store_errors import StoreUnavailable
from tests.store.sqlite_fixtures import KITCHEN, ME, filled, ids, in_the_writer, opened, run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


async def furnished(store: SqliteStore) -> None:
    """Create a healthy store with one record of each kind."""
    taken = transitions.take(run(1), ME, 200.0)
    blob = await store.put_blob(b"large")
    await store.commit(
        [
            PutSession(KITCHEN, None),
            PutRun(taken, None),
            PutRun(run(2, series="RFC-093"), None),
            PutRun(run(3, series="RFC-093"), None),
            PutRun(run(4).changed(input={"$blob": blob, "size": 5}), None),
            PutRegister("note", {"a": 1}, None),
            Notice(5.0, "late", "a result came too late", "run-00001", "kitchen"),
        ]
    )
    await store.heartbeat("kitchen-1", {"os": "linux"}, [ProgressReport("run-00001", 1, Progress(1, 2), "tail")])


async def test_a_healthy_store_has_no_problems(file: Path) -> None:
    async with opened(file) as store:
        await furnished(store)
        assert await store.check() == []


WRONG = {
    "UPDATE runs SET state = '{}' WHERE id = 'run-00001'": "run run-00001 cannot be read: InvalidRecord",
    "UPDATE runs SET state = 'x' WHERE id = 'run-00001'": "run run-00001 cannot be read",
    "UPDATE runs SET input = '{}{}' WHERE id = 'run-00001'": "run run-00001 cannot be read",
    "UPDATE runs SET status = 'odd' WHERE id = 'run-00001'": "run run-00001 cannot be read: InvalidRecord",
    "UPDATE runs SET session = NULL WHERE id = 'run-00001'": "run run-00001 is claimed, owned by None",
    "UPDATE runs SET ended_at = 5.0 WHERE id = 'run-00001'": "is claimed, owned by kitchen-1 and ended at 5",
    "UPDATE runs SET session = 'x' WHERE id = 'run-00001'": "is owned by session x, which does not exist",
    "UPDATE runs SET offered = 1 WHERE id = 'run-00001'": "run run-00001 is offered, but should not be",
    "UPDATE runs SET offered = 0 WHERE id = 'run-00004'": "run run-00004 is not offered, but should be",
    "UPDATE runs SET urgency = 3 WHERE id = 'run-00004'": "run run-00004 has priority 0 and urgency 3",
    "UPDATE sessions SET terms = '{}'": "session kitchen-1 cannot be read",
    "UPDATE sessions SET state = 'odd'": "session kitchen-1 is odd, which is not a state of sessions",
    "UPDATE registers SET value = '{' WHERE key = 'note'": "register note cannot be read",
    "UPDATE notices SET said = '[1]'": "a notice cannot be read",
    "UPDATE reports SET said = '1'": "the report on run run-00001 cannot be read",
}


@pytest.mark.parametrize(("statement", "problem"), WRONG.items())
async def test_each_kind_of_damage_is_named(file: Path, statement: str, problem: str) -> None:
    async with opened(file) as store:
        await furnished(store)
        changed = await in_the_writer(store, lambda cursor: cursor.execute(statement).rowcount)
        assert changed
        problems = await store.check()
        assert [line for line in problems if problem in line], problems


async def test_blobs_are_checked_too(file: Path) -> None:
    async with opened(file) as store:
        await furnished(store)
        [name] = [file_name for _, _, names in os.walk(f"{file}.blobs") for file_name in names]
        path = f"{file}.blobs/{name[:2]}/{name}"
        os.truncate(path, 2)
        [problem] = await store.check()
        assert re.search(rf"run run-00004 refers to blob {name}, which cannot be read: .* is damaged", problem)
        os.unlink(path)
        assert await store.check() == [f"run run-00004 refers to blob {name}, which does not exist"]


async def test_an_index_that_disagrees_with_its_table_is_named(file: Path) -> None:
    async with opened(file) as store:
        await furnished(store)

        def disagree(cursor: Any) -> None:
            cursor.execute("PRAGMA writable_schema = 1")
            swapped = "replace(sql, 'session, timeout', 'timeout, session')"
            cursor.execute(f"UPDATE sqlite_master SET sql = {swapped} WHERE name = 'runs_owned'")
            cursor.execute("PRAGMA writable_schema = 0")

        await in_the_writer(store, disagree)
        [first, *_] = await store.check()
        assert first.startswith("the file: ")
        assert "runs_owned" in first


# -- dumps -------------------------------------------------------------------------------------------------------------


async def test_a_dump_is_of_one_instant_and_comes_in_pages(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PAGE", 10)
    await filled(file, 55)
    async with opened(file) as store:
        lines = []
        async for line in store.dump():
            if len(lines) == 5:
                await store.commit([PutRun(run(number), None) for number in range(100, 120)])
                await store.commit([PutRegister("later", 1, None)])
            lines.append(line)
        assert [next(iter(line)) for line in lines] == ["asterism"] + ["run"] * 55
        assert len(await ids(store)) == 75


async def test_a_dump_can_be_abandoned(file: Path) -> None:
    await filled(file, 5)
    async with opened(file) as store:
        dump = store.dump()
        await anext(dump)
        await dump.aclose()  # type: ignore[attr-defined]
        await store.commit([PutRun(run(9), None)])


async def test_a_dump_fails_if_the_file_is_replaced_meanwhile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PAGE", 10)
    await filled(file.with_name("backup.db"), 1)
    await filled(file, 55)
    async with opened(file) as store:
        dump = store.dump()
        for _ in range(5):
            await anext(dump)
        os.replace(file.with_name("backup.db"), file)
        with pytest.raises(StoreUnavailable):
            await store.commit([PutRun(run(99), None)])
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            [line async for line in dump]


async def test_a_dump_holds_all_records(file: Path) -> None:
    async with opened(file) as store:
        await furnished(store)
        lines: list[Mapping[str, Any]] = [line async for line in store.dump()]

        async def again() -> Any:
            for line in lines:
                yield line

        memory = MemoryStore()
        async with opened(file.with_name("other.db")) as other:
            assert await other.load(again()) == await memory.load(again()) == 4
            assert await other.check() == await memory.check() == []
            restored = await other.find(Query())
            assert [each_run.id for each_run in restored] == [each_run.id for each_run in await memory.find(Query())]
            assert restored[0].session is None
            assert await other.blob(restored[3].input["$blob"]) == b"large"
            assert await other.notices() == await memory.notices()
            assert await other.registers("") == await memory.registers("")
