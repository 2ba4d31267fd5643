"""Group commit in SQLite: many commits share a transaction, and none disturbs another."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.store.protocol import (
    ExpectSession,
    ProgressReport,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    TakeRequest,
    Write,
)
from asterism.store.sqlite import SqliteStore, group_commit
from asterism.store.sqlite import store as sqlite_store
from asterism.store.store_errors import Conflict, StoreUnavailable
from tests.store.sqlite_fixtures import (
    KITCHEN,
    ME,
    Doing,
    completed,
    held_up,
    ids,
    in_the_writer,
    opened,
    run,
)


async def outcomes(store: SqliteStore, *batches: list[Write]) -> list[Any]:
    """Commit batches in one transaction. Return the outcomes."""
    async with held_up(store):
        tasks = [asyncio.create_task(store.commit(batch)) for batch in batches]
    return await asyncio.gather(*tasks, return_exceptions=True)


def inserts(said: list[str]) -> list[int]:
    """Record how many jobs each transaction has."""
    return [part.count("INSERT INTO runs") for part in "\n".join(said).split("COMMIT")]


async def test_runs_are_removed_in_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal takes long: in the event loop, everything else would wait for it."""
    threads: list[int] = []

    def prune(cursor: sqlite3.Cursor, **options: Any) -> int:
        threads.append(threading.get_ident())
        return 1

    monkeypatch.setattr(sqlite_store, "prune", prune)
    monkeypatch.setattr(group_commit, "QUICK", float("inf"))  # the loop performs all commits itself
    async with opened(tmp_path / "fleet.db") as store:
        assert await store.prune(1.0, 10) == 1
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_jobs_that_arrive_while_the_writer_is_busy_share_one_transaction_and_one_wake_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    settle = group_commit.Writer._settle

    def counted(self: group_commit.Writer, jobs: list[Any]) -> None:
        groups.append(len(jobs))
        settle(self, jobs)

    monkeypatch.setattr(group_commit.Writer, "_settle", counted)
    said: list[str] = []
    async with opened(tmp_path / "fleet.db") as store:
        await in_the_writer(store, lambda cursor: cursor.connection.set_trace_callback(said.append))
        assert await outcomes(store, *([PutRun(run(number), None)] for number in range(500))) == [None] * 500
        await in_the_writer(store, lambda cursor: cursor.connection.set_trace_callback(None))
        assert len(await ids(store)) == 500
    assert sorted(inserts(said))[-2:] == [0, 500]
    assert groups.count(500) == 1


async def test_a_group_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MOST_JOBS", 10)
    said: list[str] = []
    async with opened(tmp_path / "fleet.db") as store:
        await in_the_writer(store, lambda cursor: cursor.connection.set_trace_callback(said.append))
        await outcomes(store, *([PutRun(run(number), None)] for number in range(35)))
        await in_the_writer(store, lambda cursor: cursor.connection.set_trace_callback(None))
        assert len(await ids(store)) == 35
    assert sorted(inserts(said))[-4:] == [5, 10, 10, 10]


async def test_a_lone_statement_needs_no_transaction_around_it(tmp_path: Path) -> None:
    said: list[str] = []
    async with opened(tmp_path / "fleet.db") as store:
        await in_the_writer(store, lambda cursor: cursor.connection.set_trace_callback(said.append))
        said.clear()
        await store.commit([PutRun(run(1), None)])
        assert [line.split()[0] for line in said if "data_version" not in line][-1:] == ["INSERT"]


async def test_a_conflict_in_one_batch_does_not_disturb_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRun(run(1), None)])
        first, conflict, last = await outcomes(
            store,
            [PutRun(run(2), None)],
            [PutRun(run(3), None), PutRun(completed(run(1)), 7), PutRun(run(4), None)],
            [PutRun(run(5), None), PutRegister("a", 1, None)],
        )
        assert (first, last) == (None, None)
        assert isinstance(conflict, Conflict)
        assert conflict.what == "run run-00001"
        assert await ids(store) == ["run-00001", "run-00002", "run-00005"]


async def test_one_of_two_conflicting_jobs_of_a_group_wins(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRun(run(1), None), PutSession(KITCHEN, None)])
        results = await outcomes(
            store,
            [PutRun(completed(run(1), 1000.0), 1)],
            [PutRun(completed(run(1), 2000.0), 1)],
            [PutRun(run(2, key="k"), None)],
            [PutRun(run(3, key="k"), None)],
            [PutRun(run(2), None)],
            [ExpectSession("kitchen-1", 1), PutRegister("a", 1, None)],
            [ExpectSession("kitchen-1", 2), PutRegister("b", 1, None)],
        )
        conflicts = [outcome.what if isinstance(outcome, Conflict) else outcome for outcome in results]
        assert conflicts == [
            None, "run run-00001", None, "key k", "run run-00002", None, "session kitchen-1"
        ]  # fmt: skip
        winner = await store.run("run-00001")
        assert winner is not None
        assert winner.ended_at == 1000.0
        assert await store.register("b") is None


@pytest.mark.parametrize(
    "bad",
    [
        run(7).changed(id="lone surrogate \ud800"),
        run(7).changed(priority=2**70),
        run(7).changed(workflow=None),
        run(7).changed(device=object()),
    ],
    ids=["surrogate", "large number", "null", "object"],
)
async def test_a_value_that_sqlite_cannot_hold_is_refused_and_fails_no_other_job(tmp_path: Path, bad: Run) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        errors = await outcomes(
            store, [PutRun(run(1), None)], [PutRun(run(2), None), PutRun(bad, None)], [PutRun(bad, None)]
        )
        assert errors[0] is None
        assert all(isinstance(error, ValueError | OverflowError) for error in errors[1:])
        assert await ids(store) == ["run-00001"]


async def test_a_value_that_is_not_json_is_refused_where_it_is_submitted(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        with pytest.raises(TypeError, match="a set cannot be stored as JSON"):
            await store.commit([PutRegister("a", {"set"}, None)])
        with pytest.raises(ValueError, match="JSON compliant"):
            await store.commit([PutRun(run(1).changed(output=float("nan")), None)])
        with pytest.raises(ValueError, match="JSON compliant"):
            await store.commit([PutRun(run(1).changed(assigned_at=float("inf")), None)])
        with pytest.raises(TypeError, match="cannot write a str"):
            await store.commit(["nonsense"])  # type: ignore[list-item]


async def test_a_cancelled_caller_does_not_disturb_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        async with held_up(store):
            tasks = [asyncio.create_task(store.commit([PutRun(run(number), None)])) for number in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
        assert [type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == [
            type(None), asyncio.CancelledError, type(None)
        ]  # fmt: skip
        await store.commit([PutRun(run(9), None)])
        assert {"run-00000", "run-00002", "run-00009"} <= set(await ids(store))


async def test_a_step_that_raises_and_a_bug_in_a_job_do_not_end_the_thread(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRun(run(1), None)])

        def step(offered: Run) -> Run | None:
            raise LookupError("the step")

        with pytest.raises(LookupError, match="the step"):
            await store.take(TakeRequest("kitchen", frozenset(), 200.0, 1), step)
        with pytest.raises(ZeroDivisionError):
            await in_the_writer(store, lambda cursor: 1 // 0)
        [taken] = await store.take(
            TakeRequest("kitchen", frozenset(), 200.0, 1), lambda offered: transitions.take(offered, ME, 200.0)
        )
        assert taken.epoch == 1


async def test_closing_finishes_what_is_in_the_queue_and_ends_the_threads(tmp_path: Path) -> None:
    before = threading.enumerate()  # of other tests, perhaps about to end
    store = await SqliteStore.open(tmp_path / "fleet.db")
    await store.counts()
    async with held_up(store):
        tasks = [asyncio.create_task(store.commit([PutRun(run(number), None)])) for number in range(20)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
    await closing
    assert await asyncio.gather(*tasks) == [None] * 20
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in left if thread.name.startswith("asterism")]
    assert os.listdir(tmp_path) == ["fleet.db"]
    async with opened(tmp_path / "fleet.db") as store:
        assert len(await ids(store)) == 20


CALLS: list[Callable[[SqliteStore], Awaitable[Any]]] = [
    lambda store: store.commit([PutRun(run(1), None)]),
    lambda store: store.take(TakeRequest("kitchen", frozenset(), 1.0, 1), lambda found: None),
    lambda store: store.heartbeat("kitchen-1", {}, [ProgressReport("run-1", 1, None, "")]),
    lambda store: store.run("run-1"),
    lambda store: store.find(Query()),
    lambda store: store.put_blob(b"x"),
    lambda store: store.blob("0" * 64),
    lambda store: store.prune(1.0, 1),
    lambda store: store.check(),
    lambda store: anext(store.dump()),
]


async def test_calls_after_the_end_are_refused(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "fleet.db")
    await store.close()
    await store.close()
    for call in CALLS:
        with pytest.raises(StoreUnavailable, match=r"fleet\.db is closed"):
            await call(store)


async def test_opening_can_be_cancelled(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    opening = asyncio.create_task(SqliteStore.open(tmp_path / "fleet.db"))
    await asyncio.sleep(0)
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert threads
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    for thread in threads:
        await asyncio.to_thread(thread.join)


def test_the_thread_of_a_store_survives_the_end_of_its_loop(tmp_path: Path) -> None:
    kept: list[SqliteStore] = []

    async def leave() -> None:
        kept.append(await SqliteStore.open(tmp_path / "fleet.db"))
        await kept[0].commit([PutRun(run(1), None)])

    async def come_back() -> None:
        async with opened(tmp_path / "fleet.db") as store:
            assert await ids(store) == ["run-00001"]
            await store.commit([PutRun(run(2), None)])

    asyncio.run(leave())
    asyncio.run(come_back())
    old = kept[0]._writer
    done = threading.Event()
    old._queue.put(Doing(lambda cursor: done.set()))
    assert done.wait(60), "the writer thread still runs, although its loop is closed"
    ending: Any = asyncio.new_event_loop()
    old._queue.put(ending.create_future())
    old._thread.join()
    ending.close()


# -- event loop or thread ----------------------------------------------------------------------------------------------


def threads_of(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the thread of every transaction."""
    idents: list[int] = []
    perform = group_commit.Writer._perform

    def noted(self: group_commit.Writer, *arguments: Any) -> None:
        idents.append(threading.get_ident())
        perform(self, *arguments)

    monkeypatch.setattr(group_commit.Writer, "_perform", noted)
    return idents


async def test_on_a_fast_disk_the_event_loop_commits_all_jobs_of_a_turn_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "QUICK", float("inf"))
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRun(run(0), None)])
        store._writer._average = 0.0  # as if it was measured
        threads = threads_of(store, monkeypatch)
        await asyncio.gather(*(store.commit([PutRun(run(number), None)]) for number in range(1, 50)))
        assert threads == [threading.get_ident()]


async def test_the_thread_commits_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "QUICK", float("inf"))
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRun(run(0), None)])
        threads = threads_of(store, monkeypatch)
        monkeypatch.setattr(group_commit, "QUICK", store._writer._average / 1e9)
        await store.commit([PutRun(run(1), None)])
        monkeypatch.setattr(group_commit, "QUICK", float("inf"))
        await store.commit([PutRun(run(2), None)])
        here = threading.get_ident()
        assert [thread == here for thread in threads] == [False, True]


async def test_the_event_loop_does_not_wait_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "QUICK", float("inf"))
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRun(run(0), None)])
        other = sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        alone = asyncio.create_task(store.commit([PutRun(run(1), None)]))
        several = [asyncio.create_task(store.commit([PutRun(run(number), None)])) for number in (2, 3)]
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in (alone, *several))
        other.execute("COMMIT")
        other.close()
        await asyncio.gather(alone, *several)
        assert len(await ids(store)) == 4


async def lonely(store: SqliteStore) -> None:
    """Commit until the writer treats a job as a lone one."""
    for number in range(group_commit.CROWDED + 1):
        await store.commit([PutRegister(f"alone/{number}", number, None)])
        await asyncio.sleep(0)


async def test_a_lone_writer_skips_batching_and_the_next_job_of_the_turn_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "QUICK", float("inf"))
    async with opened(tmp_path / "fleet.db") as store:
        await lonely(store)
        first, second = store.commit([PutRun(run(1), None)]), store.commit([PutRun(run(2), None)])
        with pytest.raises(StopIteration):
            first.send(None)  # done without the loop
        second.send(None)  # it waits, so that no caller keeps the loop busy
        second.close()
        await store.commit([PutRun(run(3), None)])
        assert await ids(store) == ["run-00001", "run-00002", "run-00003"]


async def test_many_jobs_of_a_turn_share_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "QUICK", float("inf"))
    said: list[str] = []
    async with opened(tmp_path / "fleet.db") as store:
        await lonely(store)
        await asyncio.gather(*(store.commit([PutRun(run(number), None)]) for number in range(10)))
        await in_the_writer(store, lambda cursor: cursor.connection.set_trace_callback(said.append))
        await asyncio.gather(*(store.commit([PutRun(run(number), None)]) for number in range(10, 20)))
        await in_the_writer(store, lambda cursor: cursor.connection.set_trace_callback(None))
    assert max(inserts(said)) == 10


async def test_a_lone_batch_with_a_conflict_leaves_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await store.commit([PutRun(run(1), None)])
        with pytest.raises(Conflict, match="run-00001"):
            await store.commit([PutRun(run(2), None), PutRegister("a", 1, None), PutRun(completed(run(1)), 7)])
        with pytest.raises(OverflowError):
            await store.commit([PutRun(run(3), None), PutRun(run(4).changed(priority=2**70), None)])
        assert await ids(store) == ["run-00001"]
        assert await store.register("a") is None
        await store.commit([PutRun(run(2), None), PutRegister("a", 1, None)])
        assert await ids(store) == ["run-00001", "run-00002"]


def test_a_commit_acknowledged_after_an_interrupt_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between BEGIN and COMMIT, in a program that continues."""
    monkeypatch.setattr(group_commit, "QUICK", float("inf"))

    def interrupted(cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT INTO registers (key, value, revision) VALUES ('half', '1', 1)")
        raise KeyboardInterrupt

    with asyncio.Runner() as runner:
        store = runner.run(SqliteStore.open(tmp_path / "fleet.db"))
        runner.run(lonely(store))
        job = runner.get_loop().create_task(in_the_writer(store, interrupted))
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(job)
        runner.run(store.commit([PutRegister("acknowledged", 1, None)]))
        other = sqlite3.connect(tmp_path / "fleet.db")
        keys = other.execute("SELECT key FROM registers WHERE key NOT LIKE 'alone/%'").fetchall()
        other.close()
        runner.run(store.close())
    assert keys == [("acknowledged",)]


async def test_conflicts_do_not_count_as_commit_times(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        slow = 10 * group_commit.QUICK
        store._writer._average = slow
        for _ in range(40):
            with pytest.raises(Conflict):
                await store.commit([PutRegister("a", 1, None), PutRegister("gone", 1, 7)])
        assert store._writer._average == slow
