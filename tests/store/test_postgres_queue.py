"""The queue in PostgreSQL: few transactions, no waiting for each other, no cost for unsuitable runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.store.postgres import PostgresStore
from asterism.store.postgres import queue as module
from asterism.store.postgres.schema import statements
from asterism.store.protocol import PutRun, Query
from asterism.store.store_errors import StoreBusy
from tests.laboratory.store_conformance.sample_records import (
    FLOW,
    KIND,
    a_run,
    a_session,
    added,
    held_by,
    ids,
    joined,
    offer,
    started,
    taking,
)
from tests.store.postgres_fixtures import limited, looking, opened

KITCHEN = a_session()
GARAGE = a_session("garage-1", "garage")
OTHER_FLOW = Workflow("bake", argv=("true",), version=1)


class Pages:
    """Record to how many calls each page was dealt, and by which statements pages were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.queries: list[str] = []
        deal = module._deal_page

        async def noted(connection: Any, query: str, asks: list[Any]) -> bool:
            self.sizes.append(len(asks))
            self.queries.append(query)
            return await deal(connection, query, asks)

        monkeypatch.setattr(module, "_deal_page", noted)


async def _take(store: PostgresStore, session: Any, limit: int = 10, step: Any = None, **more: Any) -> list[str]:
    return ids(await store.take(offer(session.device, limit, **more), step or taking(session)))


async def test_concurrent_takes_are_served_together(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(postgres_url) as store:
        sessions = [a_session(f"s{number}", f"device{number}") for number in range(8)]
        await joined(store, *sessions)
        await added(store, *(a_run(number) for number in range(20)))
        pages = Pages(monkeypatch)
        taken = await asyncio.gather(*(_take(store, session, 2) for session in sessions))
        assert pages.sizes == [8]
        assert sorted(run for runs in taken for run in runs) == ids(a_run(number) for number in range(16))
        assert {len(runs) for runs in taken} == {2}
        for session, runs in zip(sessions, taken, strict=True):
            assert ids(await store.find(Query(session=session.id))) == sorted(runs)


async def test_few_runs_are_shared_among_all_takers(postgres_url: str) -> None:
    async with opened(postgres_url, takers=1) as store:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(4)))
        first, second = await asyncio.gather(_take(store, KITCHEN), _take(store, GARAGE))
        assert (first, second) == (["r0000", "r0002"], ["r0001", "r0003"])


async def test_takers_served_together_get_only_runs_that_suit_them(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN, GARAGE)
        await added(
            store,
            a_run(1, device="garage"),
            a_run(2).changed(avoid=("garage",)),
            a_run(3, device="elsewhere"),
            a_run(4, device="kitchen"),
            a_run(5).changed(avoid=("garage", "kitchen")),
            a_run(6),
        )
        kitchen, garage = await asyncio.gather(_take(store, KITCHEN), _take(store, GARAGE))
        assert set(kitchen) - {"r0006"} == {"r0002", "r0004"}
        assert set(garage) - {"r0006"} == {"r0001"}
        assert ids(await store.find(Query(offered=True))) == ["r0003", "r0005"]


async def test_a_step_that_raises_fails_only_its_own_take(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(4)))

        def trips(run: Run) -> Run | None:
            if run.id > "r0001":
                raise ZeroDivisionError
            return taking(GARAGE)(run)

        came = await asyncio.gather(_take(store, KITCHEN), _take(store, GARAGE, step=trips), return_exceptions=True)
        assert isinstance(came[1], ZeroDivisionError)
        assert {run.device for run in await store.find(Query())} <= {"kitchen", None}
        assert sorted(came[0] + await _take(store, GARAGE)) == ["r0000", "r0001", "r0002", "r0003"]


def _only(*wanted: str, session: Any = KITCHEN) -> Callable[[Run], Run | None]:
    take = taking(session)
    return lambda run: take(run) if run.id in wanted else None


async def test_a_picky_device_finds_its_runs_behind_all_that_it_refuses(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_PAGE", 50)
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN, GARAGE)
        flows = (FLOW, OTHER_FLOW)
        await added(store, *(a_run(number, flows[number % 2], priority=-number // 100) for number in range(400)))
        picky = _only("r0003", "r0251", "r0398", "r0399")
        alone = await _take(store, KITCHEN, 3, picky)
        assert alone == ["r0003", "r0251", "r0398"]
        again, other = await asyncio.gather(_take(store, KITCHEN, 3, picky), _take(store, GARAGE, 3))
        assert again == ["r0399"]
        assert other == ["r0000", "r0001", "r0002"]


async def test_more_than_a_page_can_be_taken_in_one_call(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_PAGE", 20)
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(100)))
        assert await _take(store, KITCHEN, 70) == [f"r{number:04d}" for number in range(70)]
        kitchen, garage = await asyncio.gather(_take(store, KITCHEN, 15), _take(store, GARAGE, 60))
        assert sorted(kitchen + garage) == [f"r{number:04d}" for number in range(70, 100)]
        assert len(kitchen) <= 15


async def test_a_take_goes_through_a_bounded_part_of_the_queue(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RUNS_JUDGED", 100)
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN)
        await added(store, *(a_run(number) for number in range(400)))
        seen: set[str] = set()
        assert await _take(store, KITCHEN, 1, lambda run: seen.add(run.id)) == []
        assert 100 <= len(seen) < 300
        assert seen == {f"r{number:04d}" for number in range(len(seen))}


async def test_a_run_refused_far_down_the_queue_stays_available_to_others(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(100)))
        looked_at: list[list[str]] = []

        def refuses(run: Run) -> Run | None:
            if run.id == "r0099":
                looked_at.append([])
            return None

        looking_through = asyncio.ensure_future(_take(store, KITCHEN, 5, refuses))
        got = await _take(other, GARAGE, 90)  # not the last ones, which may be judged right now
        await looking_through
        assert looked_at
        assert len(got) == 90  # all but those at the head, which may be locked while they are judged


async def test_runs_that_others_are_taking_are_passed_over_without_waiting(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        await added(store, *(a_run(number, (FLOW, OTHER_FLOW)[number // 20]) for number in range(40)))
        transaction = other.transaction()
        await transaction.start()
        locked = await other.fetch(
            "SELECT id FROM lock_offered(ARRAY['x'], '{}', 1e9, '|x|', -9223372036854775807, 25)"
        )
        assert [row[0] for row in locked] == [f"r{number:04d}" for number in range(25)]
        assert await _take(store, KITCHEN, 5) == [f"r{number:04d}" for number in range(25, 30)]
        picky = _only(*(f"r{number:04d}" for number in range(20, 35)))
        assert await _take(store, KITCHEN, 20, picky) == [f"r{number:04d}" for number in range(30, 35)]
        await transaction.rollback()
        assert await _take(store, KITCHEN, 20, picky) == [f"r{number:04d}" for number in range(20, 25)]


async def test_a_take_is_two_statements_without_a_transaction(postgres_url: str) -> None:
    async with opened(postgres_url, connections=1) as store:
        await joined(store, KITCHEN)
        await added(store, a_run(1), a_run(2, OTHER_FLOW))
        sent: list[str] = []
        async with store._quick.borrowed() as connection:
            connection.add_query_logger(lambda record: sent.append(record.query))  # type: ignore[attr-defined]
        assert await _take(store, KITCHEN, 2) == ["r0001", "r0002"]
        assert [query for query in sent if "notify" not in query] == [statements()["head"], statements()["take_runs"]]


def overtaken_by(other: PostgresStore, monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Let another process take runs between what the next take reads and what it writes. Returns which, later."""
    deal = module._deal_page
    overtaken: list[str] = []

    async def overtaking(connection: Any, query: str, asks: list[Any]) -> bool:
        more = await deal(connection, query, asks)
        if not overtaken:
            overtaken.append("begun")
            overtaken[:] = await _take(other, GARAGE, number)
        return more

    monkeypatch.setattr(module, "_deal_page", overtaking)
    return overtaken


async def test_a_take_that_others_overtook_locks_the_next_runs(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other took stays its own, the call gets as many other runs, and from then on runs are locked before they
    are judged."""
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(8)))
        pages = Pages(monkeypatch)
        overtaken = overtaken_by(other, monkeypatch, 2)
        assert await _take(store, KITCHEN, 4) == ["r0002", "r0003", "r0004", "r0005"]
        assert overtaken == ["r0000", "r0001"]
        assert pages.queries == ["head", "head", "offered"]
        assert await _take(store, KITCHEN, 4) == ["r0006", "r0007"]
        assert pages.queries[3:] == ["offered"]
        assert {run.epoch for run in await store.find(Query())} == {1}


async def test_what_a_take_has_written_is_returned_though_its_step_raises_later(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(8)))
        overtaken_by(other, monkeypatch, 2)

        def trips(run: Run) -> Run | None:
            if run.id > "r0003":
                raise ZeroDivisionError
            return taking(KITCHEN)(run)

        assert await _take(store, KITCHEN, 4, trips) == ["r0002", "r0003"]
        assert ids(await store.find(Query(session=KITCHEN.id))) == ["r0002", "r0003"]


async def test_several_kinds_come_in_one_order(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await joined(store, KITCHEN)
        flows = [Workflow(f"flow{number}", argv=("true",), version=1) for number in range(7)]
        runs = [
            a_run(number, flows[number * number % 7], priority=number % 3, device=None if number % 5 else "kitchen")
            for number in range(200)
        ]
        await added(store, *runs)
        wanted = sorted(runs, key=lambda run: (-run.priority, run.created_at, run.id))
        got: list[str] = []
        for size in (1, 2, 3, 50, 10, 134, 5):
            got += await _take(store, KITCHEN, size)
        assert got == ids(wanted)


async def test_a_kind_that_a_device_refuses_is_passed_over_as_a_whole(postgres_url: str) -> None:
    """The part of the queue that is read does not depend on how many of them wait."""
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        await added(store, a_run("zzz", OTHER_FLOW))

        async def rows_read() -> int:
            before = await other.fetchval(_READ)
            assert await _take(store, KITCHEN, 5, not_kinds=frozenset({KIND})) in (["zzz"], [])
            async with store._quick.borrowed() as connection:
                await connection.execute("SELECT pg_stat_force_next_flush()")
            return int(await other.fetchval(_READ)) - int(before)

        assert await rows_read() < 20
        await added(store, *(a_run(number) for number in range(3000)))
        assert await rows_read() < 20
        await added(store, *(a_run(f"p{number}", OTHER_FLOW, device="garage") for number in range(1000)))
        assert await rows_read() < 20


_READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelid = 'runs_offered'::regclass"


async def test_a_run_that_cannot_be_read_does_not_stop_the_queue(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(4)))
        await other.execute("UPDATE runs SET state = 'no JSON' WHERE id IN ('r0000', 'r0002')")
        kitchen, garage = await asyncio.gather(_take(store, KITCHEN, 1), _take(store, GARAGE, 1))
        assert sorted(kitchen + garage + await _take(store, KITCHEN)) == ["r0001", "r0003"]
        assert "r0000 cannot be read" in caplog.text
        assert [problem.split(" cannot")[0] for problem in await store.check()] == ["run r0000", "run r0002"]


async def test_a_cancelled_take_takes_nothing(postgres_url: str) -> None:
    async with opened(postgres_url, takers=1) as store:
        await joined(store, KITCHEN, GARAGE)
        await added(store, *(a_run(number) for number in range(4)))
        first = asyncio.ensure_future(_take(store, KITCHEN, 1))
        gone = asyncio.ensure_future(_take(store, GARAGE, 1))
        await asyncio.sleep(0)
        gone.cancel()
        await first
        assert len(await store.find(Query(offered=True))) == 3


async def test_a_process_that_freezes_during_a_take_delays_others_for_a_bounded_time(postgres_url: str) -> None:
    # a sixth of that limits an idle transaction, and the wait for a lock
    async with opened(postgres_url, timeout=600.0) as frozen, opened(postgres_url) as store:
        await joined(store, KITCHEN)
        await added(store, a_run(1), a_run(2))
        async with frozen._quick.borrowed() as connection:
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _: ended.set())
            assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "100s"
            await connection.execute("BEGIN")
            await connection.fetch("SELECT 1 FROM runs WHERE id = 'r0001' FOR UPDATE")
            # now it is suspended, with the lock. No take waits for it:
            assert await _take(store, KITCHEN) == ["r0002"]
            # (most of the limit has passed, to keep the test short)
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '500ms'")
            # a write of that very run does, until the server ends the idle transaction
            run = held_by(a_run(1), KITCHEN)
            await store.commit([PutRun(run, 1)])
            assert (await store.run("r0001")) == run
            await ended.wait()


async def test_waiting_for_a_lock_ends_in_time(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(postgres_url, timeout=60.0) as store, store._quick.borrowed() as connection:
        assert await connection.fetchval("SHOW lock_timeout") == "10s"
    limited(monkeypatch, lock_timeout=0.5)  # a shorter limit ends the wait earlier
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        run = held_by(a_run(1), KITCHEN)
        await added(store, run)
        async with other.transaction():
            await other.fetch("SELECT 1 FROM runs WHERE id = 'r0001' FOR UPDATE")
            with pytest.raises(StoreBusy, match="another process locked"):
                await store.commit([PutRun(started(run), run.revision)])
        await store.commit([PutRun(started(run), run.revision)])
