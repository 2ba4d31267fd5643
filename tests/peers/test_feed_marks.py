"""Feed marks: after a rollback, after syncs in the other direction, after a removal, and with a peer that lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from asterism.core.run.run import FAILED
from asterism.peers import exchange, outgoing
from asterism.peers.exchange import Exchange, PeerUnreachable
from asterism.peers.messages import PROTOCOL, parse_message
from asterism.peers.registry import marks_key
from asterism.store.protocol import PutRegister
from tests.laboratory.simulator import peer_world
from tests.laboratory.simulator.peer_world import copy_of as copied
from tests.peers.exchange_fixtures import FLOW, Direct, Liar, Side, two

LARGE = {"padding": "x" * 200_000}
"""An input that is stored as a blob."""


def put_back(side: Side, what: dict[str, Any]) -> None:
    peer_world.put_back(side.store, what)
    side.exchange = Exchange(side.fleet)


async def test_everything_returns_although_a_message_is_cut_at_a_blob() -> None:
    laptop, kitchen = await two()
    await kitchen.create()
    await laptop.sync_with(kitchen)
    old = copied(kitchen.store)
    lost = [await kitchen.create(), await kitchen.fleet.create(FLOW, LARGE, device="absent"), await kitchen.create()]
    await laptop.sync_with(kitchen)
    put_back(kitchen, old)
    laptop.exchange = Exchange(laptop.fleet)
    await laptop.sync_with(kitchen)
    for run in lost:
        assert await kitchen.store.run(run.id) is not None
        assert (await laptop.run(run.id)).status is not FAILED


async def test_records_sent_without_whole_are_sent_again() -> None:
    """A message was in flight when the store detected its rollback."""
    laptop, kitchen = await two()
    await laptop.create()
    await laptop.sync_with(kitchen)
    cursor = await kitchen.store.register("peer/laptop/cursor")
    await kitchen.store.commit([PutRegister(cursor.key, {"feed": "none", "number": 0, "whole": True}, cursor.revision)])
    feed = (await laptop.exchange._open())[1]
    late = {
        "protocol": PROTOCOL, "store": await laptop.id(), "clock": laptop.store.clock(), "feed": feed, "cursor": None,
        "after": 0, "upto": 1, "more": False, "newest": 1, "records": [], "devices": None,
        "wants": {}, "lacks": [], "whole": False,
    }  # fmt: skip
    answer = await kitchen.exchange.answer("laptop", late)
    assert answer["cursor"] == {"feed": "none", "number": 0, "turn": 0, "mark": "", "whole": True}
    answer = await kitchen.exchange.answer("laptop", late | {"whole": True})
    assert (answer["cursor"]["number"], answer["cursor"]["whole"]) == (1, False)


@pytest.mark.parametrize("who", ["both sides call", "two processes of one store call"])
async def test_only_changes_are_sent_after_syncs_on_another_way(who: str) -> None:
    laptop, kitchen = await two()
    for _ in range(50):
        await laptop.create()
    await laptop.sync_with(kitchen)
    second = Exchange(laptop.fleet)
    for _ in range(outgoing.MARKS_KEPT + 2):
        await laptop.create()
        if who == "both sides call":
            await kitchen.sync_with(laptop)
        else:
            await second.sync("kitchen", Direct(laptop, kitchen))
    before = laptop.sent
    await laptop.create()
    await laptop.sync_with(kitchen)
    assert laptop.sent - before == 1


async def test_a_peer_that_was_removed_and_invited_again_is_not_a_rollback() -> None:
    """The processes that sync keep running meanwhile."""
    laptop, kitchen = await two()
    for _ in range(2):
        await laptop.create()
        await laptop.sync_with(kitchen)
    for side, other in ((laptop, kitchen), (kitchen, laptop)):
        await side.exchange.peers.remove(other.name)
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    for _ in range(2):
        result = await laptop.sync_with(kitchen)
        assert result.put_back is None
    assert await laptop.notices("restored") == await kitchen.notices("restored") == []
    assert await laptop.store.register(marks_key(None)) is None


async def test_a_removal_on_one_side_is_not_a_rollback() -> None:
    laptop, kitchen = await two()
    await laptop.create()
    await laptop.sync_with(kitchen)
    await laptop.exchange.peers.remove("kitchen")
    await laptop.knows(kitchen)
    assert (await laptop.sync_with(kitchen)).put_back is None
    assert await laptop.notices("restored") == await kitchen.notices("restored") == []


class LyingServer:
    """Answers each message with what ``how`` makes of its number and the request."""

    def __init__(self, victim: Side, how: Callable[[int, Mapping[str, Any]], dict[str, Any]]) -> None:
        self.victim, self.how, self.answers = victim, how, 0

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self.answers += 1
        if self.answers > 100:
            raise PeerUnreachable("a hundred messages, and no end")
        base = {
            "protocol": PROTOCOL, "store": "liar-store", "clock": self.victim.store.clock(), "feed": "liar-feed",
            "cursor": None, "after": 0, "upto": 0, "more": False, "newest": 0, "records": [], "workflows": [],
            "devices": [], "wants": {}, "lacks": [],
        }  # fmt: skip
        return base | self.how(self.answers, message)

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        raise PeerUnreachable("it has nothing")

    async def send_blob(self, blob: str, data: bytes) -> None:
        """It asks for no blob."""


def _cursor(message: Mapping[str, Any], number: int, turn: int) -> dict[str, Any]:
    return {"cursor": {"feed": message["feed"], "number": number, "turn": turn, "mark": f"m{turn}"}}


LIES: dict[str, Callable[[int, Mapping[str, Any]], dict[str, Any]]] = {
    "another turn each time": lambda n, message: _cursor(message, 1, 1000 + 10 * n),
    "a turn that was never given": lambda n, message: _cursor(message, 1, 1000),
    "a number that grows": lambda n, message: _cursor(message, 1000 + n, 1000 + 10 * n),
    "all begins anew": lambda n, message: {
        "anew": True, "more": True, "put_back": True, "mark": f"m{n}", "turn": n, "upto": 1, "newest": 5,
    },
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
async def test_no_lie_makes_a_sync_endless(lie: str) -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    await laptop.create()
    await laptop.exchange.sync("kitchen", LyingServer(laptop, LIES[lie]))
    assert len(await laptop.notices("restored")) <= 1


async def test_an_endless_feed_is_not_read_in_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_ROUNDS", 20)
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    endless = LyingServer(laptop, lambda n, _: {"after": n - 1, "upto": n, "more": True, "newest": 1 << 50})
    await laptop.exchange.sync("kitchen", endless)
    assert endless.answers == 20


async def test_false_reports_of_our_rollback_give_one_notice_an_hour() -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    await laptop.create()
    liar = Liar(laptop)
    feed = (await laptop.exchange._open())[1]
    for hour in (1, 2):
        for number in range(10):
            turn = 1000 * hour + 10 * number
            await liar.says(cursor={"feed": feed, "number": 1, "turn": turn, "mark": f"m{turn}"})
        assert len(await laptop.notices("restored")) == hour
        laptop.clock.now += 3600.0


async def test_false_reports_of_its_rollback_give_one_notice_an_hour() -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    liar = Liar(laptop)
    for number in range(1, 10):
        await liar.says(anew=True, put_back=True, after=0, upto=1, turn=number, mark=f"m{number}")
    assert len(await laptop.notices("restored")) == 1


async def test_a_peer_cannot_exhaust_the_turns() -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    liar = Liar(laptop)
    feed = (await laptop.exchange._open())[1]
    for turn in ((1 << 53) - 1, 1 << 52, 1 << 40, 1 << 33):
        await laptop.create()
        parse_message(await liar.says(cursor={"feed": feed, "number": 1, "turn": turn, "mark": "m"}))
        answer = parse_message(await liar.says())
        assert len(answer.items) > 0
        assert answer.turn < 100


async def test_exhausted_turns_start_again() -> None:
    laptop, kitchen = await two()
    await laptop.create()
    await laptop.sync_with(kitchen)
    marks = await laptop.store.register(marks_key(await kitchen.id()))
    await laptop.store.commit([PutRegister(marks.key, {**marks.value, "turn": (1 << 53) - 1}, marks.revision)])
    run = await laptop.create()
    for _ in range(2):
        await laptop.sync_with(kitchen)
    assert await kitchen.store.run(run.id) is not None
