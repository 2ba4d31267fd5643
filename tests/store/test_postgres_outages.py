"""Outages: connections that break during a call, and a server that goes down and comes back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from asterism.store.postgres import PostgresStore
from asterism.store.protocol import PutRegister, PutRun, Query
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.store_conformance.sample_records import a_run, a_session, added, ids, joined, offer, taking
from tests.store.postgres_fixtures import Wire, looking, opened
from tests.store.postgres_server import Server

KITCHEN = a_session()


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def fragile(own_server: Server) -> Server:
    """A server that tests may damage; it runs at the beginning of each test."""
    if not own_server.running:
        own_server.start()
    return own_server


# -- the connection breaks ---------------------------------------------------------------------------------------------


async def _across(wire: Wire, server: Server, schema: str, **options: Any) -> PostgresStore:
    store = await PostgresStore.open(f"postgresql://postgres@/postgres?host={wire.host}&schema={schema}", **options)
    await joined(store, KITCHEN)
    await added(store, a_run(1))
    return store


async def test_a_commit_whose_answer_was_lost_may_have_happened(postgres_server: Server) -> None:
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, "answer_lost")
        wire.lose_answer = b"marked"
        with pytest.raises(StoreUnavailable) as caught:
            await store.commit([PutRun(a_run("marked"), None)])
        assert type(caught.value) is StoreUnavailable
        assert ids(await store.find(Query())) == ["marked", "r0001"]  # it had happened, and the same store works on
        await store.close()


FATAL = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"
"""What a server says to all clients before it ends."""


@pytest.mark.parametrize("beside", [False, True], ids=["runs", "runs and registers"])
async def test_many_new_runs_over_a_connection_that_is_just_ending_leave_no_error_behind(
    postgres_server: Server, beside: bool
) -> None:
    """asyncpg's COPY forgets the future of a statement that it cannot begin, or between two pieces of its data."""
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, f"just_ending_{beside}".lower())
        assert len(ids(await store.find(Query()))) == 1
        wire.tell_clients(b"E" + (len(FATAL) + 4).to_bytes(4, "big") + FATAL)
        for _ in range(20):  # turns of the loop in which the message arrives
            await asyncio.sleep(0)
        more = [PutRegister("one", {}, None)] if beside else []
        runs = [PutRun(a_run(100 + number, input={"text": "x" * 2000}), None) for number in range(1000)]
        with pytest.raises(StoreUnavailable):
            await store.commit([*runs, *more])
        await store.commit([*runs, *more])
        await store.close()
    gc.collect()
    assert not unhandled


async def test_a_commit_that_never_arrived_may_be_repeated(postgres_server: Server) -> None:
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, "request_lost")
        wire.lose_request = b"marked"
        with pytest.raises(StoreUnavailable):
            await store.commit([PutRun(a_run("marked"), None)])
        assert ids(await store.find(Query())) == ["r0001"]
        await store.commit([PutRun(a_run("marked"), None)])
        await store.close()


async def test_every_caller_of_a_group_learns_that_the_answer_was_lost(postgres_server: Server) -> None:
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, "group_lost")
        wire.lose_answer = b"marked"
        runs = [a_run(number) for number in range(2, 6)] + [a_run("marked")]
        came = await asyncio.gather(*(store.commit([PutRun(run, None)]) for run in runs), return_exceptions=True)
        assert [type(error) for error in came] == [StoreUnavailable] * 5
        assert len({id(error) for error in came}) == 5  # each has its own traceback
        await store.close()


async def test_a_take_that_broke_before_its_commit_took_nothing(postgres_server: Server) -> None:
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, "take_broken")
        store._queue._contended_until = float("inf")  # runs are locked first
        wire.lose_answer = b"kitchen-1"  # the change is made, and the COMMIT never arrives
        with pytest.raises(StoreUnavailable):
            await store.take(offer(), taking(KITCHEN))
        assert (await store.heartbeat(KITCHEN.id, {}, ())).held == []
        assert ids(await store.take(offer(), taking(KITCHEN))) == ["r0001"]
        await store.close()


@pytest.mark.parametrize("locked", [False, True])
async def test_runs_taken_while_the_answer_was_lost_are_in_the_next_heartbeat(
    postgres_server: Server, locked: bool
) -> None:
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, f"take_lost_{locked}".lower())
        if locked:
            store._queue._contended_until = float("inf")
        wire.lose_answer = b"COMMIT" if locked else b"kitchen-1"
        with pytest.raises(StoreUnavailable):
            await store.take(offer(), taking(KITCHEN))
        assert [held.run for held in (await store.heartbeat(KITCHEN.id, {}, ())).held] == ["r0001"]
        await store.close()


async def test_a_server_that_does_not_answer_is_given_up_in_time(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncpg.connect

    async def impatient(**options: Any) -> Any:
        """Limit only this call: connecting may take longer."""
        assert options["command_timeout"] == 120.0
        return await connect(**(options | {"command_timeout": 3.0}))

    monkeypatch.setattr(asyncpg, "connect", impatient)
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, "silence", timeout=120.0)
        wire.lose_answer, wire.hold = b"marked", True
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.commit([PutRun(a_run("marked"), None)])
        assert await store.run("marked") == a_run("marked")
        await store.close()


async def test_a_cancelled_caller_harms_no_other_call(postgres_server: Server) -> None:
    async with Wire(postgres_server.folder) as wire:
        store = await _across(wire, postgres_server, "cancelled")
        wire.lose_answer, wire.hold = b"no-such-run", True
        reading = asyncio.ensure_future(store.run("no-such-run"))
        await wire.holding.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await store.run("r0001") == a_run(1)
        await store.close()


async def test_idle_connections_that_the_server_ended_are_replaced(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await added(store, a_run(1))
        await store.find(Query())
        for pool in (store._quick, store._broad):
            for _, connection in pool._idle:
                gone = asyncio.Event()
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                await other.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
                await gone.wait()
        assert ids(await store.find(Query())) == ["r0001"]
        await store.commit([PutRun(a_run(2), None)])


# -- the server goes down ----------------------------------------------------------------------------------------------


async def test_a_missing_server_is_unavailable(fragile: Server) -> None:
    url = fragile.url(schema="not_there")
    fragile.stop()
    with pytest.raises(StoreUnavailable, match="cannot reach the server"):
        await PostgresStore.open(url)


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_the_same_store_works_again_when_the_server_is_back(fragile: Server, how: str) -> None:
    async with opened(fragile.url(schema=f"back_{how}")) as store:
        await joined(store, KITCHEN)
        await added(store, a_run(1))
        await (asyncio.to_thread(fragile.kill) if how == "kill" else asyncio.to_thread(fragile.stop, how))
        for attempt in (
            lambda: store.commit([PutRun(a_run(2), None)]),
            lambda: store.commit([PutRun(a_run(2), None), PutRegister("a", 1, None)]),
            lambda: store.take(offer(), taking(KITCHEN)),
            lambda: store.heartbeat(KITCHEN.id, {}, ()),
            lambda: store.find(Query()),
            lambda: store.run("r0001"),
            lambda: store.put_blob(b"something"),
        ):
            with pytest.raises(StoreUnavailable):
                await attempt()
        before = store.clock()
        await asyncio.to_thread(fragile.start)
        await store.commit([PutRun(a_run(2), None)])
        assert ids(await store.find(Query())) == ["r0001", "r0002"]
        assert (await store.heartbeat(KITCHEN.id, {}, ())).alive
        assert store.clock() > before


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed_in_the_middle(fragile: Server) -> None:
    async with opened(fragile.url(schema="killed")) as store:
        acknowledged: set[str] = set()
        enough = asyncio.Event()

        async def write(writer: int) -> None:
            for number in _numbers():
                run = a_run(f"w{writer}-{number}")
                register = [PutRegister(f"with {run.id}", 1, None)] if writer % 2 else []
                try:
                    await store.commit([PutRun(run, None), *register])
                except StoreUnavailable:
                    return
                acknowledged.add(run.id)
                if len(acknowledged) == 300:
                    enough.set()

        writers = [asyncio.create_task(write(writer)) for writer in range(8)]
        await enough.wait()
        await asyncio.to_thread(fragile.kill)
        await asyncio.gather(*writers)
        await asyncio.to_thread(fragile.start)
        stored = {run.id for run in await store.find(Query())}
        assert acknowledged <= stored
        assert len(stored - acknowledged) <= 8
        whole = {register.key.removeprefix("with ") for register in await store.registers("with ")}
        assert whole == {run_id for run_id in stored if int(run_id[1]) % 2}
        assert await store.check() == []


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
