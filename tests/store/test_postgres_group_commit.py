"""Group commit in PostgreSQL: many callers share transactions, and each learns its own outcome."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from asterism.store.postgres import PostgresStore
from asterism.store.postgres.group_commit import Job
from asterism.store.protocol import ExpectSession, Notice, PutRegister, PutRun, Query
from asterism.store.store_errors import Conflict, StoreBusy
from tests.laboratory.store_conformance.sample_records import (
    a_run,
    a_session,
    added,
    completed,
    held_by,
    ids,
    joined,
    started,
)
from tests.store.postgres_fixtures import limited, looking, opened, waits_for_a_lock


class Groups:
    """Record the size of every group that a store sends."""

    def __init__(self, store: PostgresStore) -> None:
        self.sizes: list[int] = []
        committer = store._committer
        self._send = committer._send
        committer._send = self.noted  # type: ignore[method-assign]

    async def noted(self, group: list[Job]) -> Any:
        self.sizes.append(len(group))
        return await self._send(group)


async def outcomes(store: PostgresStore, *batches: Sequence[Any]) -> list[Any]:
    """Make commits at the same time. Return None or the error of each."""
    return await asyncio.gather(*(store.commit(batch) for batch in batches), return_exceptions=True)


async def test_writes_of_one_run_each_go_together(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        groups = Groups(store)
        assert await outcomes(store, *([PutRun(a_run(number), None)] for number in range(50))) == [None] * 50
        assert groups.sizes == [50]
        assert len(await store.find(Query())) == 50


async def test_each_caller_of_a_group_learns_its_own_outcome(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        kitchen = a_session()
        await joined(store, kitchen)
        old = [held_by(a_run(number), kitchen) for number in range(4)]
        await added(store, *old, a_run(4, key="taken"))
        groups = Groups(store)
        came = await outcomes(
            store,
            [PutRun(started(old[0]), old[0].revision)],
            [PutRun(started(old[1]), old[1].revision - 1)],
            [PutRun(a_run(5), None)],
            [PutRun(a_run(2), None)],
            [PutRun(a_run(6, key="taken"), None)],
            [PutRun(started(a_run(9).changed(session="kitchen-1", status=old[0].status)), 1)],
        )
        assert groups.sizes == [6]
        conflicts = [error and error.what for error in came]
        assert conflicts == [None, "run r0001", None, "run r0002", "key taken", "run r0009"]
        assert ids(await store.find(Query())) == ["r0000", "r0001", "r0002", "r0003", "r0004", "r0005"]
        assert (await store.run("r0000")) == started(old[0])
        assert (await store.run("r0001")) == old[1]


async def test_the_first_of_two_queued_writes_of_one_run_succeeds(postgres_url: str) -> None:
    async with opened(postgres_url, committers=1) as store:
        kitchen = a_session()
        await joined(store, kitchen)
        run = started(held_by(a_run(1), kitchen))
        await added(store, run)
        groups = Groups(store)
        first, second = completed(run, "first"), completed(run, "second")
        came = await outcomes(
            store, [PutRun(first, run.revision)], [PutRun(second, run.revision)], [PutRun(a_run(2), None)]
        )
        assert groups.sizes == [2, 1]
        assert came[0] is None
        assert came[2] is None
        assert isinstance(came[1], Conflict)
        assert await store.run(run.id) == first


async def test_one_of_two_new_runs_with_one_key_in_a_group_is_refused(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        came = await outcomes(store, *([PutRun(a_run(number, key="order-7"), None)] for number in range(5)))
        assert sorted(map(str, came)).count("None") == 1
        assert {error.what for error in came if error is not None} == {"key order-7"}
        assert len(await store.find(Query())) == 1


async def test_a_write_that_cannot_be_stored_fails_alone(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        batches = [[PutRun(a_run(number), None)] for number in range(20)]
        batches[7] = [PutRun(a_run(7, key="a NUL \0 in it"), None)]
        batches[12] = [PutRun(a_run(12, key="half a \ud83d pair"), None)]
        came = await outcomes(store, *batches)
        assert [number for number, error in enumerate(came) if error is not None] == [7, 12]
        assert {type(came[7]), type(came[12])} == {ValueError}
        assert len(await store.find(Query())) == 18


async def test_a_value_that_is_not_json_is_refused_before_it_is_queued(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        groups = Groups(store)
        run = a_run(1, input={"file": object()})
        came = await outcomes(store, [PutRun(run, None)], [PutRun(a_run(2), None)])
        assert isinstance(came[0], TypeError)
        assert came[1] is None
        assert groups.sizes == [1]


async def test_a_locked_record_delays_only_its_own_commit(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, lock_timeout=0.5)
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        kitchen = a_session()
        await joined(store, kitchen)
        runs = [held_by(a_run(number), kitchen) for number in range(5)]
        await added(store, *runs)
        async with other.transaction():
            await other.fetch("SELECT 1 FROM runs WHERE id = 'r0002' FOR UPDATE")
            came = await outcomes(store, *([PutRun(started(run), run.revision)] for run in runs))
        assert [number for number, error in enumerate(came) if error is not None] == [2]
        assert isinstance(came[2], StoreBusy)
        assert "locked" in str(came[2])
        await store.commit([PutRun(started(runs[2]), runs[2].revision)])


async def test_two_commits_that_deadlock_both_succeed(postgres_url: str) -> None:
    """New keys are not locked in the order of ids, so two batches can deadlock. The server aborts one, which is tried
    again."""
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await other.execute("SET deadlock_timeout = '10s'")  # so that the server aborts the store's commit
        for attempt in itertools.count():
            ours = [PutRun(a_run(f"r{number}-{attempt}", key=f"{number}-{attempt}"), None) for number in (1, 2)]
            if await _in_each_others_way(store, other, ours):
                break  # else a busy machine was so slow that the server aborted the other
        everybody = [f"r{number}-{index}" for number in (1, 2) for index in range(attempt + 1)]
        assert ids(await store.find(Query())) == everybody


async def _in_each_others_way(store: PostgresStore, other: Any, ours: list[PutRun]) -> bool:
    """Commit two runs while another transaction takes their keys in the opposite order. Return whether the server
    aborted ours, which succeeds in either case."""
    first, second = (put.run.key for put in ours)
    insert = "INSERT INTO runs SELECT (json_populate_record(NULL::runs, $1)).*"
    row = (
        '{{"id": "{}", "workflow": "w", "version": 1, "digest": "d", "work": "{{}}", "created_at": 1, "key": "{}", '
        '"priority": 0, "timeout": 1, '
        '"input": "{{}}", "revision": 1, "status": "created", "epoch": 0, "avoid": "", "offered": 0, '
        '"not_before": 0, "state": "{{\\"story\\": []}}"}}'
    )
    await other.execute("BEGIN")
    await other.execute(insert, row.format("x1", second))
    commit = asyncio.create_task(store.commit(ours))
    await waits_for_a_lock(other)
    try:
        await other.execute(insert, row.format("x2", first))
    except asyncpg.DeadlockDetectedError:
        return False
    else:
        assert not commit.done()  # the server aborted it, and it waits for us again
        return True
    finally:
        await other.execute("ROLLBACK")
        await commit


async def test_a_batch_with_several_kinds_of_writes_is_all_or_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        kitchen = a_session()
        await joined(store, kitchen)
        batch = [
            PutRun(a_run(1, input={"$blob": "f" * 64, "size": 3}), None),
            PutRegister("series/a", {"active": "r0001"}, None),
            Notice(1.0, "test", "something \0 strange"),
        ]
        with pytest.raises(Conflict, match="session kitchen-1"):
            await store.commit([*batch, ExpectSession("kitchen-1", 7)])
        with pytest.raises(Conflict, match="register missing"):
            await store.commit([*batch, PutRegister("missing", 1, 3)])
        assert await store.find(Query()) == []
        assert await store.registers("") == []
        assert await store.notices() == []
        async with looking(postgres_url) as other:
            assert await other.fetchval("SELECT count(*) FROM blob_uses") == 0
        await store.commit([*batch, ExpectSession("kitchen-1", 1)])
        assert [notice.message for _, notice in await store.notices()] == ["something \0 strange"]


async def test_no_new_notice_has_a_lower_number_than_one_that_was_read(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("""SELECT add_notices('[{"at": 1, "run": null, "notice": "{}"}]')""")
        commit = asyncio.create_task(store.commit([Notice(2.0, "test", "second")]))
        await waits_for_a_lock(other)  # a number is given only when the previous commit is visible
        assert not commit.done()
        await transaction.rollback()
        await commit
        assert [notice.message for _, notice in await store.notices()] == ["second"]


async def test_a_cancelled_commit_in_the_queue_is_not_begun(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await store.commit([PutRun(a_run(1), None)])
        waiting = asyncio.ensure_future(store.commit([PutRun(a_run(3), None)]))
        gone = asyncio.ensure_future(store.commit([PutRun(a_run(2), None)]))
        await asyncio.sleep(0)
        gone.cancel()
        await waiting
        assert ids(await store.find(Query())) == ["r0001", "r0003"]


async def test_closing_a_store_finishes_queued_commits(postgres_url: str) -> None:
    async with opened(postgres_url) as other:
        store = await PostgresStore.open(postgres_url)
        commits = [asyncio.ensure_future(store.commit([PutRun(a_run(number), None)])) for number in range(10)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*commits)
        assert len(await other.find(Query())) == 10


async def test_commits_of_several_runs_share_a_transaction_and_a_refused_one_fails_alone(postgres_url: str) -> None:
    async with opened(postgres_url, committers=1) as store:
        kitchen = a_session()
        await joined(store, kitchen)
        old = [started(held_by(a_run(number), kitchen)) for number in range(6)]
        await added(store, *old)
        groups = Groups(store)
        puts = [PutRun(completed(run), run.revision) for run in old]
        assert await outcomes(store, puts[:2]) == [None]
        assert groups.sizes == [1]
        came = await outcomes(store, puts[2:4], [puts[4], PutRun(completed(old[0]), old[0].revision)], [puts[5]])
        assert groups.sizes == [1, 2, 1, 1, 1]
        assert [error and error.what for error in came] == [None, "run r0000", None]
        done = [str((await store.run(run.id)).status) for run in old]  # type: ignore[union-attr]
        assert done == ["completed"] * 4 + ["processing", "completed"]
