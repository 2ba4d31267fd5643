"""Holds of limits: tasks that the process of a plan does itself compete with runs for the same room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.limits import Hold, Limit, Rate, uses_text
from asterism.core.record import replace
from asterism.core.run.session import ENDED, Session
from asterism.fleet.run_explanation import limit_reasons
from asterism.fleet.stored_limits import (
    LOOK_INTERVAL,
    StoredHold,
    read_holds,
    read_stored_limits,
    release_lost_holds,
    set_limit,
)
from asterism.store.protocol import LIMITED, PutSession
from asterism.store.store_errors import Conflict
from tests.fleet.fleet_scenes import Stage
from tests.fleet.test_limited_queue import created, using, working

pytestmark = pytest.mark.virtual_time

USES = uses_text({"warehouse": 1}) or ""


async def process(stage: Stage, name: str = "p@host") -> Session:
    session = Session(name, name, stage.store.clock(), slots=0)
    await stage.store.commit([PutSession(session, None)])
    return session


def hold(stage: Stage, session: Session, number: int, **more: Any) -> StoredHold:
    fields: dict[str, Any] = {
        "id": f"{number:08}",
        "uses": USES,
        "turn": "plan:p",
        "session": session.id,
        "at": stage.store.clock(),
    }
    return StoredHold(Hold(**{"plan": "p", "task": f"t{number}", "epoch": 1, **fields, **more}))


async def grant(stage: Stage, stored: StoredHold) -> bool:
    """Grant a hold; else let it wait."""
    limits, now = await read_stored_limits(stage.store), stage.store.clock()
    book = limits.book(now)
    writes = limits.grant(stored, book, now)
    await stage.store.commit([stored.put()] if writes is None else [*writes, *limits.account_writes(book)])
    return writes is not None


async def the_hold(stage: Stage) -> StoredHold:
    [stored] = await read_holds(stage.store, "p")
    return stored


async def test_a_hold_and_a_run_never_have_the_same_room(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    assert await grant(stage, hold(stage, await process(stage), 1))
    device = await stage.device("kitchen")
    [run] = await created(stage, using(), 1)
    await asyncio.sleep(10.0)
    assert not working(stage)
    [reason] = await limit_reasons(stage.person, {"warehouse": 1}, stage.store.clock())
    assert reason.text == "of limit 'warehouse' (1) 0 is free: task t1 of plan p holds it"
    await stage.store.commit([(await the_hold(stage)).release])
    await stage.at_work(device, run)
    second = hold(stage, await process(stage, "q@host"), 2)
    assert not await grant(stage, second)


async def test_two_grants_at_one_moment_conflict(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    session = await process(stage)
    limits, now = await read_stored_limits(stage.store), stage.store.clock()
    for number in (1, 2):
        book = limits.book(now)
        writes = limits.grant(hold(stage, session, number), book, now)
        assert writes is not None
        commit = stage.store.commit([*writes, *limits.account_writes(book)])
        if number == 1:
            await commit
        else:
            with pytest.raises(Conflict):
                await commit


async def test_the_end_of_one_and_the_begin_of_the_next_are_one_commit(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    session = await process(stage)
    assert await grant(stage, hold(stage, session, 1))
    first, limits, now = await the_hold(stage), await read_stored_limits(stage.store), stage.store.clock()
    limits.holds.remove(first)
    book = limits.book(now)
    writes = limits.grant(hold(stage, session, 2), book, now)
    assert writes is not None
    await stage.store.commit([first.release, *writes, *limits.account_writes(book)])
    assert [stored.hold.task for stored in await read_holds(stage.store)] == ["t2"]


async def test_whoever_waits_longer_goes_first(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    session = await process(stage)
    assert await grant(stage, hold(stage, session, 1))
    assert not await grant(stage, hold(stage, session, 2, turn="plan:q"))
    await stage.store.commit([next(one for one in await read_holds(stage.store) if one.hold.granted).release])
    assert not await grant(stage, hold(stage, session, 3, turn="plan:r"))
    [second] = [one for one in await read_holds(stage.store) if one.hold.task == "t2"]
    assert await grant(stage, second)


async def test_the_room_of_a_waiting_hold_is_kept_from_runs_while_its_process_lives(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    session = await process(stage)
    assert await grant(stage, hold(stage, session, 1))
    assert not await grant(stage, hold(stage, session, 2, turn="plan:q"))
    device = await stage.device("kitchen")
    [run] = await created(stage, using(), 1)
    await stage.store.commit([next(one for one in await read_holds(stage.store) if one.hold.granted).release])
    await asyncio.sleep(20.0)
    assert not working(stage)
    await asyncio.sleep(session.timeout)  # it sends no heartbeats
    await stage.at_work(device, run)


async def test_a_run_whose_turn_it_is_goes_first_for_some_seconds(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    await created(stage, using(needs={"gpu"}), 1)  # which no device has
    session = await process(stage)
    assert not await grant(stage, hold(stage, session, 1, id="zz"))
    await asyncio.sleep(LOOK_INTERVAL)
    assert await grant(stage, await the_hold(stage))


async def test_a_rate_counts_holds(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", None, Rate(1, 60.0)))
    session = await process(stage)
    assert await grant(stage, hold(stage, session, 1))
    await stage.store.commit([(await the_hold(stage)).release])
    assert not await grant(stage, hold(stage, session, 2))


async def test_the_hold_of_a_dead_process_is_released_and_that_of_a_live_one_is_not(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 2))
    dead, live = await process(stage), await process(stage, "q@host")
    for number, session in ((1, dead), (2, live)):
        assert await grant(stage, hold(stage, session, number))
    silent = {dead.id: dead.timeout + 1.0}
    await release_lost_holds(stage.store, lambda session: silent.get(session.id, 0.0))
    assert len(await read_holds(stage.store)) == 2  # by the store's clock it is not silent
    await asyncio.sleep(dead.timeout + 1.0)
    await release_lost_holds(stage.store, lambda session: silent.get(session.id, 0.0))
    assert [stored.hold.task for stored in await read_holds(stage.store)] == ["t2"]
    [session] = [one for one in await stage.store.sessions() if one.id == live.id]
    await stage.store.commit(
        [PutSession(replace(session, state=ENDED, revision=session.revision + 1), session.revision)]
    )
    await release_lost_holds(stage.store, lambda session: 0.0)
    assert not await read_holds(stage.store)


async def test_the_coordinator_releases_what_a_dead_process_held(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    session = await process(stage)
    assert await grant(stage, hold(stage, session, 1))
    device = await stage.device("kitchen", monitor_every=5.0)
    [run] = await created(stage, using(), 1)
    await asyncio.sleep(session.timeout - 10.0)
    assert not working(stage)
    await stage.at_work(device, run)
    assert not await read_holds(stage.store)


async def test_a_release_wakes_whoever_waits_for_limits(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    assert await grant(stage, hold(stage, await process(stage), 1))
    watch = stage.store.watch(frozenset({LIMITED}))
    assert not watch.woken
    await stage.store.commit([(await the_hold(stage)).release])
    assert watch.woken
    watch.close()


async def test_without_the_accounts_two_grants_at_one_moment_would_exceed_a_limit(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    session = await process(stage)
    limits, now = await read_stored_limits(stage.store), stage.store.clock()
    for number in (1, 2):
        writes = limits.grant(hold(stage, session, number), limits.book(now), now)
        assert writes is not None
        await stage.store.commit(writes)
    assert (await read_stored_limits(stage.store)).book(now).shortages({"warehouse": 1})[0].free == 0
    assert len(await read_holds(stage.store)) == 2


async def test_a_heartbeat_at_the_last_moment_keeps_a_hold(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    session = await process(stage)
    assert await grant(stage, hold(stage, session, 1))
    await asyncio.sleep(session.timeout + 1.0)
    sessions = stage.store.sessions

    async def read_before_the_heartbeat() -> list[Session]:
        read = await sessions()
        await stage.store.heartbeat(session.id, {}, ())
        return read

    monkeypatch.setattr(stage.store, "sessions", read_before_the_heartbeat)
    await release_lost_holds(stage.store, lambda session: session.timeout + 1.0)
    assert await read_holds(stage.store)
