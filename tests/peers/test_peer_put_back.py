"""A store whose file is put back from an older copy of itself: that is noticed, and everything is exchanged anew."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run.run import COMPLETED, CREATED
from asterism.peers import messages, rollback_detection
from asterism.peers.exchange import Exchange, PeerUnreachable
from asterism.store.protocol import PutRegister
from asterism.store.sqlite import SqliteStore
from asterism.testing.simulator import peer_stores
from asterism.testing.simulator.peer_stores import copy_of as copied
from tests.peers.exchange_scenes import FLOW, Direct, Liar, Side, StillClock, three, two


def put_back(side: Side, what: dict[str, Any]) -> None:
    """Its processes were stopped for that, and began anew."""
    peer_stores.put_back(side.store, what)
    side.exchange = Exchange(side.fleet)


async def runs(side: Side, number: int) -> list[str]:
    return [(await side.create()).id for _ in range(number)]


async def has(side: Side, run_ids: list[str]) -> bool:
    return all([await side.store.run(run_id) is not None for run_id in run_ids])


async def test_what_a_store_does_after_it_was_put_back_is_told() -> None:
    """Its numbers have passed those that the peer has heard of before."""
    laptop, kitchen = await two()
    await runs(laptop, 5)
    await laptop.meet(kitchen)
    old = copied(laptop.store)
    await runs(laptop, 5)
    await laptop.meet(kitchen)
    put_back(laptop, old)
    new = await runs(laptop, 8)
    met = await laptop.meet(kitchen)
    assert await has(kitchen, new)
    assert met.put_back == "here"


async def test_it_is_noticed_by_the_side_that_is_called_too() -> None:
    laptop, kitchen = await two()
    await runs(kitchen, 5)
    await laptop.meet(kitchen)
    old = copied(kitchen.store)
    await runs(kitchen, 5)
    await laptop.meet(kitchen)
    put_back(kitchen, old)
    new = await runs(kitchen, 8)
    met = await laptop.meet(kitchen)
    assert await has(laptop, new)
    assert met.put_back == "there"
    assert (await laptop.notices("restored"))[0].startswith("the store of peer kitchen was restored from an older copy")
    assert (await kitchen.notices("restored"))[0].startswith("this store was restored from an older copy")


async def test_what_it_created_since_comes_back_to_it_and_is_its_own() -> None:
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    lost = await runs(laptop, 3)
    await laptop.meet(kitchen)
    put_back(laptop, old)
    await laptop.meet(kitchen)
    assert await has(laptop, lost)
    assert [await laptop.left_to(one) for one in lost] == [None] * 3
    assert (await laptop.run(lost[0])).status is CREATED


async def test_also_if_more_has_to_be_told_than_goes_into_one_message() -> None:
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    lost = await runs(laptop, messages.MAX_BATCH_RECORDS + 50)
    await laptop.meet(kitchen)
    put_back(laptop, old)
    await laptop.meet(kitchen)
    assert await has(laptop, lost)


async def test_also_if_nothing_is_in_the_copy() -> None:
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    lost = await runs(laptop, 3)
    await laptop.meet(kitchen)
    put_back(laptop, old)
    await kitchen.meet(laptop)
    await laptop.meet(kitchen)
    assert await has(laptop, lost)
    met = await laptop.meet(kitchen)
    assert (met.sent, met.taken, met.put_back) == (0, 0, None)


async def test_it_is_said_once_and_all_is_quiet_afterwards() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 2)
    await laptop.meet(kitchen)
    old = copied(laptop.store)
    await runs(laptop, 2)
    await runs(kitchen, 2)
    await laptop.meet(kitchen)
    put_back(laptop, old)
    await runs(laptop, 9)
    for _ in range(2):
        await laptop.meet(kitchen)
        await kitchen.meet(laptop)
    assert len(await laptop.notices("restored")) == len(await kitchen.notices("restored")) == 1
    met = await laptop.meet(kitchen)
    assert (met.sent, met.taken, met.put_back) == (0, 0, None)


async def test_it_is_noticed_a_second_time() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 2)
    await laptop.meet(kitchen)
    old = copied(laptop.store)
    for time in (1, 2):
        await runs(laptop, 5)
        await laptop.meet(kitchen)
        put_back(laptop, old)
        new = await runs(laptop, 6)
        await laptop.meet(kitchen)
        assert await has(kitchen, new)
        assert len(await kitchen.notices("restored")) == time
        kitchen.clock.now += 3600.0


async def test_a_copy_that_was_made_in_the_middle_of_a_meeting_is_noticed() -> None:
    """What was told by then is known, and what was told after that is not."""
    laptop, kitchen = await two()
    await runs(laptop, messages.MAX_BATCH_RECORDS + 5)
    with pytest.raises(PeerUnreachable):
        await laptop.meet(kitchen, breaks=2)
    old = copied(laptop.store)
    await laptop.meet(kitchen)
    await runs(laptop, 3)
    await laptop.meet(kitchen)
    put_back(laptop, old)
    new = await runs(laptop, 9)
    await laptop.meet(kitchen)
    assert await has(kitchen, new)


async def test_nobody_is_said_to_be_put_back_who_was_only_broken_off() -> None:
    laptop, kitchen = await two()
    for number in range(3 * rollback_detection.MARKS_KEPT):
        await runs(laptop, 1)
        await runs(kitchen, 1)
        with contextlib.suppress(PeerUnreachable):
            await laptop.meet(kitchen, breaks=number % 3)
    met = await laptop.meet(kitchen, twice=True)
    assert met.put_back is None
    assert await laptop.notices("restored") == await kitchen.notices("restored") == []


async def test_a_message_that_never_arrives_does_not_make_the_peers_mark_forgotten() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 1)
    await laptop.meet(kitchen)
    known = (await kitchen.store.register("peer/laptop/cursor")).value
    _, _, sending, _ = await laptop.exchange._open()
    peer = await laptop.exchange.peers.get("kitchen")
    for _ in range(3 * rollback_detection.MARKS_KEPT):
        await runs(laptop, 1)
        part = await sending.next_batch(peer, messages.Cursor(**known))
        assert not part.anew


async def test_a_mark_of_long_ago_is_told_everything_and_accuses_nobody() -> None:
    """The kitchen was put back: the laptop has forgotten the marks of that time."""
    laptop, kitchen = await two()
    first = await runs(laptop, 1)
    await laptop.meet(kitchen)
    cursor = await kitchen.store.register("peer/laptop/cursor")
    for _ in range(2 * rollback_detection.MARKS_KEPT):
        await runs(laptop, 1)
        await laptop.meet(kitchen)
    now = await kitchen.store.register("peer/laptop/cursor")
    await kitchen.store.commit([PutRegister(cursor.key, cursor.value, now.revision)])
    laptop.sent = 0
    met = await laptop.meet(kitchen)
    assert met.put_back is None
    assert laptop.sent == 1 + 2 * rollback_detection.MARKS_KEPT
    assert await has(kitchen, first)
    assert await laptop.notices("restored") == await kitchen.notices("restored") == []


async def test_each_peer_has_marks_of_its_own() -> None:
    laptop, kitchen, garage = await three()
    await runs(laptop, 2)
    for other in (kitchen, garage):
        await laptop.meet(other)
    old = copied(laptop.store)
    await runs(laptop, 4)
    await laptop.meet(kitchen)
    put_back(laptop, old)
    new = await runs(laptop, 7)
    for other in (garage, kitchen):
        await laptop.meet(other)
        assert await has(other, new)
    assert await garage.notices("restored") == []


async def test_a_result_that_the_store_has_forgotten_is_not_believed_and_that_is_said() -> None:
    """Its own device said it, and only its own store would know."""
    laptop, kitchen = await two()
    old = copied((await first_met(laptop, kitchen)).store)
    [lost] = await runs(laptop, 1)
    await laptop.take(lost)
    await laptop.complete(lost, {"done": 1})
    await laptop.meet(kitchen)
    put_back(laptop, old)
    await laptop.meet(kitchen)
    assert (await kitchen.run(lost)).status is COMPLETED
    assert await laptop.store.run(lost) is None
    assert "laptop is a device of this store, and did not report" in (await laptop.notices("refused"))[0]


async def test_a_peer_of_an_earlier_version_goes_on_where_it_was() -> None:
    laptop, kitchen = await two()
    await runs(laptop, 3)
    await laptop.meet(kitchen)
    cursor = await kitchen.store.register("peer/laptop/cursor")
    earlier = {"feed": cursor.value["feed"], "number": cursor.value["number"]}
    await kitchen.store.commit([PutRegister(cursor.key, earlier, cursor.revision)])
    laptop.exchange, laptop.sent = Exchange(laptop.fleet), 0
    met = await laptop.meet(kitchen)
    assert (laptop.sent, met.put_back) == (0, None)


async def test_a_peer_that_says_so_of_us_costs_one_telling() -> None:
    """It may lie: then it is told everything, as if it had asked for it."""
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


async def test_a_file_that_is_copied_back_is_noticed(tmp_path: Path) -> None:
    """As with ``cp``: nobody has it open."""
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
    await laptop.meet(kitchen)
    await laptop.store.close()
    shutil.copy(tmp_path / "laptop.db", tmp_path / "copy.db")
    laptop = await opened("laptop")
    lost = await runs(laptop, 3)
    await laptop.meet(kitchen)
    await laptop.store.close()
    shutil.copy(tmp_path / "copy.db", tmp_path / "laptop.db")
    laptop = await opened("laptop")
    new = await runs(laptop, 8)
    met = await laptop.meet(kitchen)
    assert await has(kitchen, new)
    assert await has(laptop, lost)
    assert met.put_back == "here"
    await laptop.store.close()
    await kitchen.store.close()


async def first_met(laptop: Side, kitchen: Side) -> Side:
    await laptop.fleet.workflows.add(FLOW)
    await laptop.meet(kitchen)
    return laptop


async def test_the_line_is_dead_when_it_is_said_to_be() -> None:
    """What these scenes rely on."""
    laptop, kitchen = await two()
    with pytest.raises(PeerUnreachable):
        await Direct(laptop, kitchen, breaks=0).send({})
