"""Reads of SQLite: single records in the event loop, and searches, which use the index that ``Query.index`` names: what
it passes over is not counted by ``scan_end``."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, COMPLETED, Run
from asterism.store.protocol import PutRegister, PutRun, PutSession, Query, Register
from asterism.store.sqlite import SqliteStore, reads
from asterism.store.sqlite.schema import MIGRATIONS, statements
from asterism.store.sqlite.store import FEW, of_one_record
from asterism.store.store_errors import StoreUnavailable
from tests.store.sqlite_fixtures import KITCHEN, ME, held_up, opened, run

OPEN = frozenset({ASSIGNED})


class _Explaining:
    """A cursor that answers a statement with its query plan."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:")
        for _, script in MIGRATIONS:
            for statement in statements(script):
                self._connection.execute(statement)
        self.plan = ""

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, values: Any) -> sqlite3.Cursor:
        rows = self._connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
        self.plan = "; ".join(row[-1] for row in rows)
        return self._connection.execute("SELECT 1 WHERE 0")


@pytest.fixture
def cursor() -> Iterator[Any]:
    with contextlib.closing(_Explaining()) as explaining:
        yield explaining


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(), "sqlite_autoindex_runs_1"),
        (Query(search="x", after="r1", newest=True), "sqlite_autoindex_runs_1"),
        (Query(statuses=frozenset({COMPLETED})), "sqlite_autoindex_runs_1"),
        (Query(statuses=OPEN, judged=True), "runs_open"),
        (Query(statuses=OPEN, after="r1", search="x"), "runs_open"),
        (Query(workflow="w", statuses=OPEN, newest=True), "runs_workflow"),
        (Query(workflow="w", device="d"), "runs_device"),
        (Query(workflow="w", device="d", series="s", until="r1", newest=True), "runs_series"),
        (Query(batch="b", series="s"), "runs_batch"),
        (Query(batch="b", statuses=OPEN, newest=True), "runs_batch"),
    ],
)
def test_a_search_goes_by_the_index_of_its_query(query: Query, index: str, cursor: Any) -> None:
    for read in (lambda: reads.find(cursor, query), lambda: reads.scan_end(cursor, query, 5)):
        read()
        assert f"INDEX {index}" in cursor.plan
        assert "TEMP B-TREE" not in cursor.plan


@pytest.mark.parametrize("name", [None, "films"])
def test_batches_are_counted_by_their_index(name: str | None, cursor: Any) -> None:
    reads.batches(cursor, name)
    assert "SEARCH runs USING INDEX runs_batch (batch>? AND batch<?)" in cursor.plan
    reads.last_ends(cursor, "films", 9)
    assert "SEARCH runs USING COVERING INDEX runs_batch" in cursor.plan


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(session="s", statuses=OPEN), "runs_owned"),
        (Query(key="k", workflow="w"), "runs_key"),
        (Query(keys=frozenset({"k"})), "runs_key"),
        (Query(due_before=1.0, statuses=OPEN), "runs_due"),
        (Query(offered=True, workflow="w"), "runs_offered"),
    ],
)
def test_few_runs_are_found_first_and_sorted_then(query: Query, index: str, cursor: Any) -> None:
    reads.find(cursor, query)
    assert f"INDEX {index}" in cursor.plan
    # SQLite 3.53 knows that a key has one run at most.
    assert "TEMP B-TREE FOR ORDER BY" in cursor.plan or query.key is not None


async def test_a_single_record_is_read_in_the_event_loop_if_the_file_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    register = reads.register

    def noted(cursor: sqlite3.Cursor, key: str) -> Register | None:
        threads.append(threading.current_thread())
        return register(cursor, key)

    monkeypatch.setattr(SqliteStore, "register", of_one_record(noted))
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRegister("a", 1, None)])
        monkeypatch.setattr(store._writer, "_average", 0.0)
        assert await store.register("a") == Register("a", 1, 1)
        assert threads.pop() is threading.current_thread()
        monkeypatch.setattr(store._writer, "_average", 1.0)  # a slow disk
        assert await store.register("a") == Register("a", 1, 1)
        assert threads.pop() is not threading.current_thread()
        monkeypatch.setattr(store._writer, "_average", 0.0)
        async with held_up(store):  # the writer is at work in its thread
            assert await store.register("a") == Register("a", 1, 1)
            assert threads.pop() is not threading.current_thread()


async def test_a_read_in_the_event_loop_sees_the_commits_of_other_processes_and_has_the_errors_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fleet.db"
    async with opened(path) as store, opened(path) as other:
        await store.commit([PutRegister("a", 1, None)])
        monkeypatch.setattr(store._writer, "_average", 0.0)
        for number in range(2, 5):
            await other.commit([PutRegister("a", number, number - 1)])
            assert await store.register("a") == Register("a", number, number)
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreUnavailable):
            await store.register("a")
        (tmp_path / "elsewhere.db").rename(path)
        assert (await store.register("a")) == Register("a", 4, 4)


async def test_a_few_runs_of_a_session_are_read_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device looks at its runs at each wake: the way to a thread and back takes longer."""
    here: list[bool] = []
    find = reads.find

    def noted(cursor: sqlite3.Cursor, query: Query) -> list[Run]:
        here.append(threading.current_thread() is threading.main_thread())
        return find(cursor, query)

    monkeypatch.setattr(reads, "find", noted)
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutSession(KITCHEN, None)])
        monkeypatch.setattr(store._writer, "_average", 0.0)
        for first, last, threads in ((0, FEW, [True]), (FEW, FEW + 1, [True, False])):
            taken = [transitions.take(run(number), ME, 1000.0) for number in range(first, last)]
            await store.commit([PutRun(new, None) for new in taken])
            here.clear()
            assert len(await store.find(Query(session=ME.session))) == last
            assert here == threads
        here.clear()
        assert len(await store.find(Query(device="kitchen"))) == FEW + 1  # of a device there may be any number
        assert here == [False]
