"""Rollback detection: a store file restored from an older copy is noticed, and everything is exchanged again."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run.run import COMPLETED, CREATED
from asterism.peers import messages, outgoing
from asterism.peers.exchange import Exchange, PeerUnreachable
from asterism.store.protocol import PutRegister
from asterism.store.sqlite import SqliteStore
from tests.laboratory.simulator import peer_world
from tests.laboratory.simulator.peer_world import copy_of as copied
from tests.peers.exchange_fixtures import FLOW, Direct, Liar, Side, StillClock, three, two


def put_back(side: Side, what: dict[str, Any]) -> None:
    """Roll back a store, and start its processes again."""
    peer_world.put_back(side.store, what)
    side.exchange = Exchange(side.fleet)


async def runs(side: Side, number: int) -> list[str]:
    return [(await side.create()).id for _ in range(number)]


async def has(side: Side, run_ids: list[str]) -> bool:
    return all([await side.store.run(run_id) is not None for run_id in run_ids])


async def test_changes_after_a_rollback_are_sent() -> None:
    """Its change numbers have passed the peer's cursor."""
    laptop, kitchen = await two()
    await runs(laptop, 5)
    await laptop.sync_with(kitchen)
    old = copied(laptop.store)
    await runs(laptop, 5)
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    new = await runs(laptop, 8)
    result = await laptop.sync_with(kitchen)
    assert await has(kitchen, new)
    assert result.put_back == "here"


async def test_the_server_detects_a_rollback_as_well() -> None:
    laptop, kitchen = await two()
    await runs(kitchen, 5)
    await laptop.sync_with(kitchen)
    old = copied(kitchen.store)
    await runs(kitchen, 5)
    await laptop.sync_with(kitchen)
    put_back(kitchen, old)
    new = await runs(kitchen, 8)
    result = await laptop.sync_with(kitchen)
    assert await has(laptop, new)
    assert result.put_back == "there"
    assert (await laptop.notices("restored"))[0].startswith("the store of peer kitchen was restored from an older copy")
    assert (await kitchen.notices("restored"))[0].startswith("this store was restored from an older copy")


async def test_runs_created_before_a_rollback_come_back() -> None:
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    lost = await runs(laptop, 3)
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    await laptop.sync_with(kitchen)
    assert await has(laptop, lost)
    assert [await laptop.left_to(run_id) for run_id in lost] == [None] * 3
    assert (await laptop.run(lost[0])).status is CREATED


async def test_they_come_back_even_in_several_messages() -> None:
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    lost = await runs(laptop, messages.MAX_BATCH_RECORDS + 50)
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    await laptop.sync_with(kitchen)
    assert await has(laptop, lost)


async def test_they_come_back_even_to_an_empty_copy() -> None:
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    lost = await runs(laptop, 3)
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    await kitchen.sync_with(laptop)
    await laptop.sync_with(kitchen)
    assert await has(laptop, lost)
    result = await laptop.sync_with(kitchen)
    assert (result.sent, result.taken, result.put_back) == (0, 0, None)


async def test_a_rollback_gives_one_notice() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 2)
    await laptop.sync_with(kitchen)
    old = copied(laptop.store)
    await runs(laptop, 2)
    await runs(kitchen, 2)
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    await runs(laptop, 9)
    for _ in range(2):
        await laptop.sync_with(kitchen)
        await kitchen.sync_with(laptop)
    assert len(await laptop.notices("restored")) == len(await kitchen.notices("restored")) == 1
    result = await laptop.sync_with(kitchen)
    assert (result.sent, result.taken, result.put_back) == (0, 0, None)


async def test_a_second_rollback_is_detected() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 2)
    await laptop.sync_with(kitchen)
    old = copied(laptop.store)
    for time in (1, 2):
        await runs(laptop, 5)
        await laptop.sync_with(kitchen)
        put_back(laptop, old)
        new = await runs(laptop, 6)
        await laptop.sync_with(kitchen)
        assert await has(kitchen, new)
        assert len(await kitchen.notices("restored")) == time
        kitchen.clock.now += 3600.0


async def test_a_copy_made_during_a_sync_is_detected() -> None:
    """It contains what was sent by then, and not what was sent later."""
    laptop, kitchen = await two()
    await runs(laptop, messages.MAX_BATCH_RECORDS + 5)
    with pytest.raises(PeerUnreachable):
        await laptop.sync_with(kitchen, breaks=2)
    old = copied(laptop.store)
    await laptop.sync_with(kitchen)
    await runs(laptop, 3)
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    new = await runs(laptop, 9)
    await laptop.sync_with(kitchen)
    assert await has(kitchen, new)


async def test_an_interrupted_sync_is_not_a_rollback() -> None:
    laptop, kitchen = await two()
    for number in range(3 * outgoing.MARKS_KEPT):
        await runs(laptop, 1)
        await runs(kitchen, 1)
        with contextlib.suppress(PeerUnreachable):
            await laptop.sync_with(kitchen, breaks=number % 3)
    result = await laptop.sync_with(kitchen, twice=True)
    assert result.put_back is None
    assert await laptop.notices("restored") == await kitchen.notices("restored") == []


async def test_lost_messages_do_not_drop_the_mark_of_a_peer() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 1)
    await laptop.sync_with(kitchen)
    known = (await kitchen.store.register("peer/laptop/cursor")).value
    _, _, sending, _ = await laptop.exchange._open()
    peer = await laptop.exchange.peers.get("kitchen")
    for _ in range(3 * outgoing.MARKS_KEPT):
        await runs(laptop, 1)
        part = await sending.next_batch(peer, messages.Cursor(**known))
        assert not part.anew


async def test_an_old_mark_gets_everything_without_a_rollback_notice() -> None:
    """The kitchen was rolled back, and the laptop has dropped the marks of that time."""
    laptop, kitchen = await two()
    first = await runs(laptop, 1)
    await laptop.sync_with(kitchen)
    cursor = await kitchen.store.register("peer/laptop/cursor")
    for _ in range(2 * outgoing.MARKS_KEPT):
        await runs(laptop, 1)
        await laptop.sync_with(kitchen)
    now = await kitchen.store.register("peer/laptop/cursor")
    await kitchen.store.commit([PutRegister(cursor.key, cursor.value, now.revision)])
    laptop.sent = 0
    result = await laptop.sync_with(kitchen)
    assert result.put_back is None
    assert laptop.sent == 1 + 2 * outgoing.MARKS_KEPT
    assert await has(kitchen, first)
    assert await laptop.notices("restored") == await kitchen.notices("restored") == []


async def test_each_peer_has_marks_of_its_own() -> None:
    laptop, kitchen, garage = await three()
    await runs(laptop, 2)
    for other in (kitchen, garage):
        await laptop.sync_with(other)
    old = copied(laptop.store)
    await runs(laptop, 4)
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    new = await runs(laptop, 7)
    for other in (garage, kitchen):
        await laptop.sync_with(other)
        assert await has(other, new)
    assert await garage.notices("restored") == []


async def test_a_result_that_the_store_has_forgotten_stays_with_the_peer_and_nobody_is_called_a_forger() -> None:
    """Only the store of the device could confirm it."""
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    [lost] = await runs(laptop, 1)
    await laptop.take(lost)
    await laptop.complete(lost, {"done": 1})
    await laptop.sync_with(kitchen)
    put_back(laptop, old)
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(lost)).status is COMPLETED
    assert await laptop.store.run(lost) is None
    [notice] = await laptop.notices("refused")
    assert "laptop is a device of this store, which has no report of it that the run is completed" in notice
    assert "also if this store was restored from an older copy and has lost it" in notice
    assert "forged" not in notice


async def test_a_peer_without_a_mark_continues_where_it_was() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 3)
    await laptop.sync_with(kitchen)
    cursor = await kitchen.store.register("peer/laptop/cursor")
    unmarked = {"feed": cursor.value["feed"], "number": cursor.value["number"]}
    await kitchen.store.commit([PutRegister(cursor.key, unmarked, cursor.revision)])
    laptop.exchange, laptop.sent = Exchange(laptop.fleet), 0
    result = await laptop.sync_with(kitchen)
    assert (laptop.sent, result.put_back) == (0, None)


async def test_a_false_rollback_claim_costs_one_replay() -> None:
    """A liar receives everything once, as if it had asked for it."""
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    await runs(laptop, 2)
    liar = Liar(laptop)
    feed = (await liar.says())["feed"]
    lie = {"feed": feed, "number": 2, "turn": 1 << 40, "mark": "x", "whole": False}
    for _ in range(3):
        answer = await liar.says(cursor=lie)
    assert answer["anew"]
    assert answer["put_back"]
    assert len(answer["records"]) == 2
    assert len(await laptop.notices("restored")) == 1


async def test_a_file_that_is_copied_back_is_detected(tmp_path: Path) -> None:
    """As with ``cp``, while no process has it open."""
    clock = StillClock()

    async def opened(name: str) -> Side:
        store = await SqliteStore.open(tmp_path / f"{name}.db", clock=lambda: 1_000_000.0 + clock.now)
        side = Side(name, store)
        side.clock = clock
        return side

    laptop, kitchen = await (await opened("laptop")).joined(), await (await opened("kitchen")).joined()
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    await runs(laptop, 3)
    await laptop.sync_with(kitchen)
    await laptop.store.close()
    shutil.copy(tmp_path / "laptop.db", tmp_path / "copy.db")
    laptop = await opened("laptop")
    lost = await runs(laptop, 3)
    await laptop.sync_with(kitchen)
    await laptop.store.close()
    shutil.copy(tmp_path / "copy.db", tmp_path / "laptop.db")
    laptop = await opened("laptop")
    new = await runs(laptop, 8)
    result = await laptop.sync_with(kitchen)
    assert await has(kitchen, new)
    assert await has(laptop, lost)
    assert result.put_back == "here"
    await laptop.store.close()
    await kitchen.store.close()


async def first_met(laptop: Side, kitchen: Side) -> Side:
    await laptop.fleet.workflows.add(FLOW)
    await laptop.sync_with(kitchen)
    return laptop


async def test_the_test_transport_breaks_when_told() -> None:
    """The other tests rely on it."""
    laptop, kitchen = await two()
    with pytest.raises(PeerUnreachable):
        await Direct(laptop, kitchen, breaks=0).send({})
